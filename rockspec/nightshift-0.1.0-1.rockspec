-- From a clone: luarocks --lua-version=5.4 make
--
-- Lua is the only rock this depends on, so that it installs where no rock
-- server is reachable. The program `nightshift` also needs argparse: Debian's
-- lua-argparse, or `luarocks --lua-version=5.4 install argparse`. `nightshift web` needs penlight,
-- too: lua-penlight, or the rock of that name. The module needs neither. `work --http` and `web` need
-- libmicrohttpd, with its header where this is built; without that the program is built without
-- them. The same is true of `top` and ncurses.
rockspec_format = "3.0"
package = "nightshift"
version = "0.1.0-1"
source = {
  url = "git+file://.", -- `luarocks make` builds the working folder
}
description = {
  summary = "Durable background jobs for Lua, on MariaDB",
  detailed = [[
    Queues with push, claim and ack in MariaDB tables, and a host program that
    runs job handlers written as Lua scripts: with retries, priorities,
    parents and children, and polling of operations that run elsewhere.]],
  license = "MIT",
  labels = { "queue", "jobs", "mariadb", "worker" },
}
supported_platforms = { "linux" }
dependencies = { "lua >= 5.4, < 5.5" }
external_dependencies = {
  MARIADB = { header = "mariadb/mysql.h", library = "mariadb" },
  JANSSON = { header = "jansson.h", library = "jansson" },
  UV = { header = "uv.h", library = "uv" },
}
build = {
  type = "make",
  build_variables = {
    O = "build/rock",
    CFLAGS = "$(CFLAGS)",
    LUA = "$(LUA)",
    LUA_CFLAGS = "-I$(LUA_INCDIR)",
    MARIADB_CFLAGS = "-I$(MARIADB_INCDIR)/mariadb",
    MARIADB_LIBS = "-L$(MARIADB_LIBDIR) -lmariadb",
    JANSSON_LIBS = "-L$(JANSSON_LIBDIR) -ljansson",
    UV_LIBS = "-L$(UV_LIBDIR) -luv",
  },
  install_variables = {
    O = "build/rock",
    CFLAGS = "$(CFLAGS)",
    LUA_CFLAGS = "-I$(LUA_INCDIR)",
    MARIADB_CFLAGS = "-I$(MARIADB_INCDIR)/mariadb",
    MARIADB_LIBS = "-L$(MARIADB_LIBDIR) -lmariadb",
    JANSSON_LIBS = "-L$(JANSSON_LIBDIR) -ljansson",
    UV_LIBS = "-L$(UV_LIBDIR) -luv",
    PREFIX = "$(PREFIX)",
    BINDIR = "$(BINDIR)",
    LUADIR = "$(LUADIR)",
    LIBDIR = "$(LIBDIR)",
    UNITDIR = "", -- a rock has no service
  },
}
test = { type = "command", command = "make test" }
