# Turns sql/schema/*.sql and sql/query/*.sql into the C source of ns_sql.c.
#
# A statement begins at a line `-- name: NAME` and ends at the next one.
# Comment lines (`-- …`) and blank lines are dropped, one trailing semicolon
# too; /* … */ comments stay, the server shows them. {now} stands for the server
# clock in microseconds, {end} for the ready_at of a sentinel. Usage:
#   awk -v part=header|source -f sql/embed.awk FILE…
# Schema statements keep their order and carry the number of their file
# (NNN_title.sql) as the version, those of the last file, routines.sql, the highest;
# query statements must be sorted by name.

function fail(msg) { print FILENAME ":" FNR ": " msg > "/dev/stderr"; bad = 1; exit 1 }

function flush_statement() {
  if (name == "") return
  sub(/;[ \t\n]*$/, "", text); sub(/\n+$/, "", text)
  if (text == "") fail("statement " name " is empty")
  n++; names[n] = name; texts[n] = text; versions[n] = version; lines[n] = at
  name = ""; text = ""
}

FNR == 1 {
  flush_statement()
  base = FILENAME; sub(/.*\//, "", base)
  version = (FILENAME !~ /schema\//) ? 0 : base ~ /^[0-9]/ ? base + 0 : version
  last = ""
}
/^-- name: / {
  flush_statement()
  name = $3; at = FILENAME ":" FNR
  if (name !~ /^[a-z][a-z0-9_]*$/) fail("bad statement name '" name "'")
  if (name in seen) fail("statement " name " is named twice")
  seen[name] = 1
  if (!version && last != "" && name < last) fail(name " must come before " last)
  last = name
  next
}
/^[ \t]*--/ || /^[ \t]*$/ { next }
{
  if (name == "") fail("text before the first `-- name:`")
  line = $0
  gsub(/\{now\}/, "TIMESTAMPDIFF(MICROSECOND,TIMESTAMP'1970-01-01 00:00:00',UTC_TIMESTAMP(6))", line)
  gsub(/\{end\}/, "9223372036854775807", line)
  text = text line "\n"
}
END {
  if (bad) exit 1
  flush_statement()
  print "/* Made from sql/ by sql/embed.awk; do not edit. */"
  if (part == "header") {
    print "#ifndef NS_SQL_NAMES_H\n#define NS_SQL_NAMES_H\n\n/* one per statement of sql/query */\ntypedef enum ns_sql {"
    for (i = 1; i <= n; i++) if (!versions[i]) print "  NS_SQL_" toupper(names[i]) ","
    print "  NS_SQL_COUNT\n} ns_sql;\n\n#endif"
    exit 0
  }
  print "#include \"ns_sql.h\"\n\n#include <stddef.h>\n"
  print "const char *const ns_sql_names[] = {"
  for (i = 1; i <= n; i++) if (!versions[i]) print "    \"" names[i] "\","
  print "};\n\nconst char *const ns_sql_texts[] = {"
  for (i = 1; i <= n; i++) if (!versions[i]) print "    " quoted(texts[i]) ","
  print "};\n\nconst ns_schema_statement ns_schema_statements[] = {"
  for (i = 1; i <= n; i++) if (versions[i]) print "    {" versions[i] ", \"" names[i] "\",\n     " quoted(texts[i]) "},"
  print "    {0, NULL, NULL}};"
}

function quoted(s,   parts, count, j, out, piece) {
  count = split(s, parts, "\n")
  for (j = 1; j <= count; j++) {
    piece = parts[j]
    gsub(/\\/, "\\\\", piece); gsub(/"/, "\\\"", piece)
    out = out (j > 1 ? "\n     " : "") "\"" piece (j < count ? "\\n" : "") "\""
  }
  return out
}
