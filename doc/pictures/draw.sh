#!/bin/sh
# Draws each description of this folder: NAME.dot and the style below become NAME.svg, which
# follows the reader's light or dark scheme. Needs `dot` (Debian: graphviz).
#     doc/pictures/draw.sh [FOLDER]        into this folder, unless told another
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${1:-$here}

style=$(cat <<'END'
/* Words and lines on the page itself have colours between light and dark, for viewers that do
   not tell the scheme; boxes have a fill of their own. */
text { fill: #1f2328; font-family: "DejaVu Sans", Verdana, Arial, sans-serif; }
.node path, .node polygon, .node ellipse, .node polyline { fill: #f6f8fa; stroke: #6e7681; }
.cluster path, .cluster polygon { fill: none; stroke: #6e7681; stroke-dasharray: 4 3; }
.edge path { stroke: #6e7681; }
.edge polygon { fill: #6e7681; stroke: #6e7681; }
.edge text, .cluster text, .label text { fill: #6e7681; }
.db path, .db polygon, .db ellipse, .db polyline { fill: #ddf4ff; stroke: #0969da; }
.good path { fill: #dafbe1; stroke: #1a7f37; }
.bad path { fill: #ffebe9; stroke: #cf222e; }
.busy path { fill: #fff8c5; stroke: #9a6700; }
@media (prefers-color-scheme: dark) {
  text, .edge text, .cluster text, .label text { fill: #e6edf3; }
  .node path, .node polygon, .node ellipse, .node polyline { fill: #161b22; stroke: #8b949e; }
  .edge path { stroke: #8b949e; }
  .edge polygon { fill: #8b949e; stroke: #8b949e; }
  .db path, .db polygon, .db ellipse, .db polyline { fill: #0c2d6b; stroke: #58a6ff; }
  .good path { fill: #033a16; stroke: #3fb950; }
  .bad path { fill: #67060c; stroke: #f85149; }
  .busy path { fill: #4b2900; stroke: #d29922; }
}
END
)
export style

for source in "$here"/*.dot; do
  dot -Tsvg "$source" | awk '
    /^<!--/ || /^ -->/ || /^ Pages/ || /^<title>/ { next }
    { print }
    /^ viewBox=/ { print "<style>\n" ENVIRON["style"] "\n</style>" }' > "$to/$(basename "$source" .dot).svg"
done
