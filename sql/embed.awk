# Turns sql/schema/*.sql and sql/query/*.sql into the C source of ns_sql.c.
#
# A statement begins at a line `-- name: NAME` and ends at the next one.
# Comment lines (`-- …`) and blank lines are dropped, one trailing semicolon
# too; /* … */ comments stay, the server shows them. {MARK} stands for the text behind
# `-- mark: MARK` (sql/marks.sql), also in the marks after it; braces with other words in
# them stay. Usage:
#   awk -v part=header|source -f sql/embed.awk sql/marks.sql FILE…
# Schema statements keep their order and carry the number of their file
# (NNN_title.sql) as the version, those of the last file, routines.sql, the highest;
# query statements must be sorted by name.

function fail(msg) { print FILENAME ":" FNR ": " msg > "/dev/stderr"; bad = 1; exit 1 }

function flush_statement() {
  if (name == "") return
  sub(/;[ \t\n]*$/, "", text); sub(/\n+$/, "", text)
  if (text == "") fail("statement " name " is empty")
  if (is_mark) { marks[name] = text; name = text = ""; return }
  n++; names[n] = name; texts[n] = text; versions[n] = version; lines[n] = at
  name = ""; text = ""
}

FNR == 1 {
  flush_statement()
  base = FILENAME; sub(/.*\//, "", base)
  version = (FILENAME !~ /schema\//) ? 0 : base ~ /^[0-9]/ ? base + 0 : version
  last = ""
}
/^-- (name|mark): / {
  flush_statement()
  name = $3; at = FILENAME ":" FNR; is_mark = $2 == "mark:"
  if (name !~ /^[a-z][a-z0-9_]*$/) fail("bad statement name '" name "'")
  if ((is_mark, name) in seen) fail(name " is named twice")
  seen[is_mark, name] = 1
  if (is_mark) next
  if (!version && last != "" && name < last) fail(name " must come before " last)
  last = name
  next
}
/^[ \t]*--/ || /^[ \t]*$/ { next }
{
  if (name == "") fail("text before the first `-- name:`")
  text = text unfolded($0) "\n"
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
  print "#include \"db/db.h\"\n\n#include <stddef.h>\n"
  print "const char *const ns_sql_names[] = {"
  for (i = 1; i <= n; i++) if (!versions[i]) print "    \"" names[i] "\","
  print "};\n\nconst char *const ns_sql_texts[] = {"
  for (i = 1; i <= n; i++) if (!versions[i]) print "    " quoted(texts[i]) ","
  print "};\n\nconst ns_schema_statement ns_schema_statements[] = {"
  for (i = 1; i <= n; i++) if (versions[i]) print "    {" versions[i] ", \"" names[i] "\",\n     " quoted(texts[i]) "},"
  print "    {0, NULL, NULL}};"
}

function unfolded(line,   mark) {
  for (mark in marks) gsub("[{]" mark "[}]", marks[mark], line)
  return line
}

function quoted(s,   parts, count, j, out, piece) {
  count = split(s, parts, "\n")
  for (j = 1; j <= count; j++) {
    piece = parts[j]
    gsub(/[\\"]/, "\\\\&", piece)
    out = out (j > 1 ? "\n     " : "") "\"" piece (j < count ? "\\n" : "") "\""
  }
  return out
}
