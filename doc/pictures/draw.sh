#!/bin/sh
# Draws each description of this folder: NAME.dot and style.css become NAME.svg, which follows
# the reader's light or dark scheme. Needs `dot` (Debian: graphviz).
#     doc/pictures/draw.sh
set -eu
cd "$(dirname "$0")"
for source in *.dot; do
  dot -Tsvg "$source" | awk '
    /^<!--/ || /^ -->/ || /^ Pages/ || /^<title>/ { next }
    { print }
    /^ viewBox=/ {
      print "<style>"
      while ((getline line < "style.css") > 0) print line
      print "</style>"
    }' > "${source%.dot}.svg"
done
