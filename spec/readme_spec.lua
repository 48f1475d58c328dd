-- What the README and the pages show runs as it stands there.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

--- The block of a page, in Lua unless told, that holds a text.
local function block(page, text, language)
  for code in read(page):gmatch("```" .. (language or "lua") .. "\n(.-)```") do
    if code:find(text, 1, true) then return code end
  end
  error(page .. " has no block with " .. text)
end

describe("the README's", function()
  it("first commands run, and print what it shows", function()
    local commands = block("README.md", "hello.say", "sh"):gsub("build/bin/nightshift", proc.program)
    local shown = read "README.md":match "```\n(%d+\n.-)\n```"
    local status, out, errors = proc.run { "sh", "-e", "-c", commands, env = { NIGHTSHIFT_URL = db.fresh() } }
    assert.equal(0, status, errors)
    local said, expected = {}, {}
    for line in out:gmatch "[^\n]+" do said[#said + 1] = line end
    for line in shown:gmatch "[^\n]+" do expected[#expected + 1] = line end
    assert.equal(#expected, #said, out)
    for i, line in ipairs(expected) do
      for word in line:gsub("%d+", ""):gsub("…", ""):gmatch "[%a.]+" do
        assert.is_truthy(said[i]:find(word, 1, true), word .. " is not in: " .. said[i])
      end
    end
  end)

  it("handlers can be pasted and run", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = block("README.md", "nightshift.background"):gsub("sleep 8", "sleep 1"):gsub("every = 5", "every = 1")
    local path = proc.folder() .. "/sized"
    assert(io.open(path, "w")):write("12345"):close()
    local q = handle:queue "q"
    local sized = assert(q:push("file.size", { path = path }))
    local missing = assert(q:push("file.size", { path = "/none" }, { max_attempts = 1 }))
    local encoded = assert(q:push "video.encode")
    local h = host.start(url, script, { "--drain" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.same({ bytes = 5 }, handle:job(sized).result)
    assert.is_truthy(handle:job(missing).error:find("No such file", 1, true))
    assert.equal("done", handle:job(encoded).state)
    local results = 0
    for _, row in ipairs(handle:jobs { state = "done" }) do
      local job = handle:job(row.id)
      if job.parent == encoded and type(job.result) == "string" then results = results + 1 end
    end
    assert.equal(1, results)
  end)

  it("few lines of a program run, and run again", function()
    local url = db.fresh()
    local lines = block("README.md", "job:ack { sent = true }")
    assert.is_truthy(lines:find("nightshift.open", 1, true))
    lines = lines:gsub('nightshift.open "[^"]*"', ("nightshift.open %q"):format(url))
      :gsub('delay = "30s"', "delay = 0"):gsub("wait = 60", "wait = 5")
    for _ = 1, 2 do assert(load(lines .. "\nassert(job)"))() end
  end)
end)

describe("the pages'", function()
  it("handlers run under a host", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local printed = assert(handle:queue "q":push "invoice.print")
    local cut = assert(handle:queue "q":push "video.cut")
    local status, log = host.drain(url, block("doc/handlers.md", "invoice.print"))
    assert.equal(0, status, log)
    assert.same({ pages = 4 }, handle:job(printed).result)
    assert.equal("done", handle:job(cut).state)
  end)

  it("connection of a worker is opened at its start and closed at its end", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = [[package.preload.redis = function()
      return { connect = function()
        print "connected"
        return { set = function(_, key) print("set " .. key) end, quit = function() print "quit" end }
      end }
    end
    ]] .. block("doc/handlers.md", "worker.start")
    assert(handle:queue "q":push("cache.warm", { key = "k", value = 1 }))
    local h = host.start(url, script, { "--workers", "1", "--drain" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.equal("connected\nset k\nquit\n", (h:text()))
  end)

  it("parents join what their children gave", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = "return {\n" .. block("doc/trees.md", "local total = 0") ..
      ',\n["report.region"] = function(job) return { sum = job.payload } end }'
    script = script:gsub("end\n,", "end,")
    local id = assert(handle:queue "q":push("report", { regions = { 2, 3 } }))
    local status, log = host.drain(url, script)
    assert.equal(0, status, log)
    assert.same({ total = 5 }, handle:job(id).result)
  end)

  it("flows and signals run", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id, ids = assert(load("local db = ...\n" .. block("doc/trees.md", "db:flow{") .. "\nreturn id, ids"))(handle)
    assert.equal(id, ids.id)
    assert.equal("waiting", handle:job(id).state)
    local script = 'return { ask = function(job)\nlocal function ask_for_approval() end\n' ..
      block("doc/trees.md", "ask_for_approval") .. "return job.signal\nend }"
    local asked = assert(handle:queue "q":push "ask")
    local h = host.start(url, script, {}, { NIGHTSHIFT_LOG = "debug" })
    h:wait_line("job.waits", 20)
    local sql = block("doc/sql.md", "nightshift_signal", "sql"):gsub("17", tostring(asked))
    for statement in sql:gmatch "CALL[^;]+" do assert(handle:execute(statement)) end
    h:wait_line("job.done", 20)
    h:signal "TERM"
    assert.equal(0, h:wait(60))
    assert.same({ by = "ann" }, handle:job(asked).result)
  end)

  it("push from SQL gives an id", function()
    local handle <close> = assert(nightshift.open(db.fresh()))
    local id
    for statement in block("doc/sql.md", "nightshift_push", "sql"):gmatch "%f[%a]%u+ [^;]+" do
      local rows = assert(handle:execute(statement))
      id = rows[1] and rows[1]["@nightshift_id"] or id
    end
    assert.equal("scheduled", handle:job(id).state)
    assert.equal(120, handle:job(id).priority)
  end)
end)
