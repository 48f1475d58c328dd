-- The library for C programs: installed into an empty tree, and used from that tree alone.

local proc = require "spec.support.proc"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

describe("the C library, installed", function()
  local tree, url, handle
  with_database(function(h, _, u) handle, url = h, u end)

  setup(function()
    tree = fixture.dir()
    local pipe = assert(io.popen(("env -u MAKEFLAGS -u MFLAGS make -s install O=%s PREFIX=%s 2>&1")
      :format(quote(proc.build), quote(tree))))
    local text = pipe:read "a"
    assert(pipe:close(), text)
  end)

  local function compile(compiler, source, program)
    local flags = ("$(PKG_CONFIG_PATH=%s pkg-config --cflags --libs nightshift)")
      :format(quote(tree .. "/lib/pkgconfig"))
    local sanitizers = os.getenv "SAN" and "-fsanitize=" .. os.getenv "SAN" or ""
    local pipe = assert(io.popen(("%s -Wall -Wextra -Wpedantic -Werror %s -o %s %s %s 2>&1")
      :format(compiler, sanitizers, quote(program), quote(source), flags)))
    local text = pipe:read "a"
    assert.is_true(pipe:close(), text)
  end

  it("builds the example, which pushes, polls and settles", function()
    local program = tree .. "/mail"
    compile("cc -std=c11", "examples/c/mail.c", program)
    local status, out, err = proc.run { program, url, timeout = 60 }
    assert.equal(0, status, err)
    local first, second = out:match "^pushed (%d+) and (%d+)\n"
    assert.equal("sent", handle:job(tonumber(first)).result)
    local polled = handle:job(tonumber(second))
    assert.same({ "done", "sent", 2 }, { polled.state, polled.result, polled.polls })
    assert.equal(3, select(2, out:gsub("mail.deliver, poll %d", "")))
  end)

  it("says why a database cannot be opened, also when no server is named", function()
    local program = tree .. "/mail"
    compile("cc -std=c11", "examples/c/mail.c", program)
    local status, _, err = proc.run { program, "mysql://nobody@127.0.0.1:1/none", timeout = 60 }
    assert.equal(1, status)
    assert.matches("^mail: open: GONE: ", err)
    status, _, err = proc.run { program, "not a url", timeout = 60 }
    assert.equal(1, status)
    assert.matches("^mail: open: INVALID: ", err)
  end)

  it("has a header that is C++ as well, and installs no other", function()
    local source = fixture.file("use.cpp", [[
#include <nightshift.h>
int main() {
  ns_config cfg = NS_CONFIG_INIT;
  ns_jobs jobs = NS_JOBS_INIT;
  ns_info info = NS_INFO_INIT;
  ns_db *db;
  ns_err err;
  ns_info_free(&info);
  ns_jobs_free(&jobs);
  return ns_open(&db, &cfg, &err) == NS_EINVALID ? 0 : 1;
}
]])
    compile("c++ -std=c++17", source, tree .. "/use")
    assert.equal(0, (proc.run { tree .. "/use", timeout = 60 }))
    local list = io.popen("ls " .. quote(tree .. "/include")):read "a"
    assert.equal("nightshift.h\nnightshift_types.h\n", list)
  end)

  it("is gone after make uninstall", function()
    local pipe = assert(io.popen(("env -u MAKEFLAGS -u MFLAGS make -s uninstall O=%s PREFIX=%s 2>&1")
      :format(quote(proc.build), quote(tree))))
    assert.equal("", pipe:read "a")
    assert.is_true((pipe:close()))
    assert.equal("", io.popen(("find %s/include %s/lib -type f"):format(quote(tree), quote(tree))):read "a")
  end)
end)
