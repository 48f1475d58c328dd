-- `nightshift top` on a real terminal, which tmux is: keys are sent, and the screen is read.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- ------------------------------------------------------------------- terminals

local Term = {}
Term.__index = Term

local server -- the socket of tmux
local number = 0

local function tmux(...)
  local status, out, err = proc.run { env = { TERM = "screen" }, "tmux", "-u", "-S", server, "-f", "/dev/null", ... }
  assert(status == 0, err)
  return out
end

local PLAIN <const> =
  [[cd %s; trap : INT; stty -a >before; "$@"; echo "ended with $?"; stty -a >after; exec sleep 600]]

-- In a shell with job control, which goes on once `top` is stopped.
local STOPPED <const> = [[cd %s; stty -a >before; set -m; "$@"; echo "stopped with $?"; stty -a >after;
  read line; fg; echo "ended with $?"; stty -a >after; exec sleep 600]]

--- Starts `nightshift top` on a terminal of its own. Its settings are kept in `before` and `after`.
local function start(url, given)
  given = given or {}
  number = number + 1
  local self = setmetatable({ name = "t" .. number, folder = fixture.dir() }, Term)
  local command = (given.command or PLAIN):format(self.folder)
  local words = { "new-session", "-d", "-s", self.name, "-x", given.width or 80, "-y", given.height or 24,
    "env", "--default-signal=HUP", "-u", "LUA_CPATH", "NIGHTSHIFT_URL=" .. url, "NIGHTSHIFT_CONFIG=/dev/null",
    "TERM=screen", "LC_ALL=C.UTF-8" }
  for name, value in pairs(given.env or {}) do words[#words + 1] = name .. "=" .. value end
  for _, word in ipairs { "sh", "-c", command, "sh", given.program or proc.program, "top", "--every", "1s" } do
    words[#words + 1] = word
  end
  for i, word in ipairs(words) do words[i] = tostring(word) end
  tmux(table.unpack(words))
  return self
end

--- What is seen; with "-e" its colours, too.
function Term:screen(...) return tmux("capture-pane", "-p", "-t", self.name, ...) end

--- The lines that are seen.
function Term:lines()
  local list = {}
  for line in self:screen():gmatch "([^\n]*)\n" do list[#list + 1] = line end
  return list
end

--- The first line that has the text; nil: none has.
function Term:line(text)
  for i, line in ipairs(self:lines()) do
    if line:find(text, 1, true) then return line, i end
  end
end

--- Waits until a function of the screen's text gives something true.
function Term:until_seen(fn, what)
  local seen
  local ok = pcall(eventually, function()
    seen = self:screen()
    return fn(seen)
  end, 20)
  if not ok then error(("not seen: %s\n%s"):format(what, seen), 3) end
end

--- Waits until these texts are seen.
function Term:shows(...)
  for _, text in ipairs { ... } do
    self:until_seen(function(seen) return seen:find(text, 1, true) end, text)
  end
end

--- Waits until a text is not seen any more.
function Term:loses(text)
  self:until_seen(function(seen) return not seen:find(text, 1, true) end, "anything but " .. text)
end

function Term:keys(...) tmux("send-keys", "-t", self.name, ...) end
function Term:write(text) tmux("send-keys", "-l", "-t", self.name, text) end
function Term:resize(width, height)
  tmux("resize-window", "-t", self.name, "-x", tostring(width), "-y", tostring(height))
end

--- The process of `top`.
function Term:pid()
  local shell = tonumber(tmux("display-message", "-p", "-t", self.name, "#{pane_pid}"))
  return eventually(function()
    for _, pid in ipairs(host.children(shell)) do
      if host.name(pid) == "nightshift" then return pid end
    end
  end)
end

--- Is the terminal as it was before `top`, but for its size?
function Term:is_as_before()
  local function read(name)
    local file <close> = assert(io.open(self.folder .. "/" .. name))
    return (file:read "a":gsub("rows %d+; columns %d+;", ""))
  end
  eventually(function() return io.open(self.folder .. "/after") and read "after" ~= "" end)
  assert.equal(read "before", read "after")
  local flags = "#{alternate_on} #{cursor_flag} #{keypad_flag}"
  assert.equal("0 1 0\n", tmux("display-message", "-p", "-t", self.name, flags))
end

function Term:close() tmux("kill-session", "-t", self.name) end

local missing = proc.run { "sh", "-c", "command -v tmux" } ~= 0 and "tmux is not installed"
  or not io.open(proc.build .. "/nightshift/host/screen.so") and "it is built without ncurses"

-- ----------------------------------------------------------------------- specs

-- Handlers: `hold` says what its payload says and lasts until `go` is there; `fail` fails of it.
local SCRIPT = [[return {
  hold = function(job)
    job:progress(0.4, job.payload.says)
    while not io.open(%q) and not job:cancelled() do require "nightshift.core".sleep(0.02) end
  end,
  fail = function(job) return nil, job.payload end,
}]]

describe("top", function()
  if missing then
    it("runs", function() pending(missing) end)
    return
  end

  local url, handle, go

  setup(function()
    server = fixture.dir() .. "/tmux"
    tmux("new-session", "-d", "-s", "kept", "exec sleep 3600") -- tmux ends with its last session
    url = db.fresh()
    handle = assert(nightshift.open(url))
    go = fixture.dir() .. "/go"
    host.start(url, SCRIPT:format(go), { "--workers", "3" })
  end)

  teardown(function()
    pcall(tmux, "kill-server")
    if handle then handle:close() end
  end)

  describe("on a terminal of 80 columns and 24 lines", function()
    local t, held, failed

    setup(function()
      held = assert(handle:queue "videos":push("hold", { says = "page 4 of 10" }))
      failed = assert(handle:queue "mail":push("fail", "no such mailbox", { max_attempts = 1 }))
      assert(handle:queue "mail":push("later", {}, { delay = "1h" }))
      eventually(function() return handle:job(failed).state == "dead" and handle:job(held).progress end)
      t = start(url)
      t:shows("QUEUES 2")
    end)

    after_each(function() t:keys("Escape", "1") end)

    it("shows totals, queues, hosts with their jobs, and failures", function()
      t:shows("1 host, 3 workers", "0 ready  1 running  1 scheduled  0 waiting  1 dead", "q quit  ? help")
      t:shows("page 4 of 10", "no such mailbox")
      assert.matches("^mail +0 +0 +1 +0 +1", (t:line "mail "))
      assert.matches("^videos +0 +1 +0 +0 +0", (t:line "videos "))
      assert.matches("^  hold +videos +" .. held .. " +%d+ +[%d.ms]+ +40%% page 4 of 10", (t:line "  hold"))
      assert.matches("^fail +mail +" .. failed .. " +[%d.ms]+ no such mailbox", (t:line "fail "))
      local _, queues = t:line "QUEUES"
      local _, work = t:line "HOSTS, JOBS"
      local _, failures = t:line "FAILURES"
      assert.is_true(queues < work and work < failures)
      assert.equal(24, #t:lines())
      assert.matches("^q quit", t:lines()[24])
    end)

    it("shows how fast jobs end", function()
      for _ = 1, 30 do assert(handle:queue "fast":push("fail", "x", { max_attempts = 1 })) end
      t:until_seen(function(seen) return seen:match "0/s done  [1-3]%.%d/s dead" end, "a rate")
      eventually(function() return #handle:jobs { state = "dead", queue = "fast" } == 30 end)
      assert(handle:delete { state = "dead", queue = "fast" })
      assert(handle:remove_queue "fast")
    end)

    it("shows the last hour by minutes, once these are counted", function()
      local minute = (os.time() - 90) // 60 * 60000000
      for at, done in pairs { [minute - 60000000] = 80, [minute] = 10 } do
        local zeros = (", 0"):rep(10)
        assert(handle:execute("INSERT INTO nightshift_minute VALUES (1, ?, 0, ?" .. zeros .. ")", at, done))
      end
      t:keys "q"
      t:shows "ended with 0"
      t:close()
      t = start(url)
      t:until_seen(function(seen) return seen:match "last hour +█▁" end, "the bars of two minutes")
    end)

    it("pauses the selected queue, and resumes it", function()
      t:keys "p"
      t:shows "queue mail is paused"
      assert.is_true(handle:queue "mail":stats().paused)
      assert.matches("paused$", (t:line "mail "))
      t:keys "p"
      t:shows "queue mail is resumed"
      assert.is_false(handle:queue "mail":stats().paused)
    end)

    it("opens a job, with what it has died of, and retries it", function()
      t:keys("3", "Enter")
      t:shows(("job %d  fail"):format(failed), "why   ", "payload       \"no such mailbox\"")
      t:keys "End"
      t:shows "run 1 failed at"
      local runs = handle:job(failed).run
      t:keys "r"
      t:shows(("job %d 'fail' runs again"):format(failed))
      eventually(function() return handle:job(failed).run > runs end)
      t:keys "Escape"
      t:shows "QUEUES"
      eventually(function() return handle:job(failed).state == "dead" end)
    end)

    it("shows jobs that have failed and are tried again, and runs one at once", function()
      local id = assert(handle:queue "later":push("fail", "try later", { backoff = "40m" }))
      t:until_seen(function(seen)
        return seen:match("\nfail +later +" .. id .. " +[%d.ms]+ again in [^\n]*try[^\n]*\nfail +mail ")
      end, "the last failure, before the earlier one")
      t:keys("3", "Home", "r")
      t:shows(("job %d 'fail' runs again"):format(id))
      eventually(function() return handle:job(id).attempts == 2 end)
      assert(handle:cancel(id))
      assert(handle:remove_queue "later")
      t:keys "1"
    end)

    it("lists the jobs of a queue", function()
      t:keys "Enter"
      t:shows("JOBS OF mail 2", "later")
      assert.matches("^later +%d+ scheduled", (t:line "later"))
      t:keys("Escape")
      t:shows "HOSTS, JOBS"
    end)

    it("cancels a job, once the question has been answered", function()
      local id = assert(handle:queue "videos":push("hold", { says = "in vain" }))
      t:shows "in vain"
      t:keys("2")
      local order = {}
      for _, line in ipairs(t:lines()) do
        if line:find "^  hold" then order[#order + 1] = line:find("in vain", 1, true) and id or held end
      end
      assert.same({ held, id }, order)
      t:keys("Home", "j", "j", "c")
      t:shows(("cancel job %d 'hold'?  y yes, n no"):format(id))
      t:keys "n"
      t:shows "it goes on"
      assert.equal("running", handle:job(id).state)
      t:keys("c", "y")
      t:shows(("job %d is cancelled"):format(id))
      eventually(function() return handle:job(id).state == "cancelled" end)
      t:loses "in vain"
      t:keys "1"
    end)

    it("filters what it shows", function()
      t:write "/VID"
      t:shows "/VID_"
      t:loses "no such mailbox"
      t:shows "QUEUES 1 of 2"
      t:keys "Enter"
      t:shows "filter: VID"
      assert.is_nil(t:line "mail ")
      assert.is_truthy(t:line "page 4 of 10")
      t:keys "Escape"
      t:shows "no such mailbox"
      t:write "/videoss"
      t:shows "none that has the filter's text"
      t:keys("BSpace")
      t:shows "page 4 of 10"
      t:keys("Escape")
    end)

    it("has help", function()
      t:keys "?"
      t:shows("pause the selected queue", "q, Ctrl-C")
      t:keys "Escape"
      t:shows "QUEUES"
    end)

    it("follows the terminal's size", function()
      t:resize(40, 10)
      t:until_seen(function(seen) return not seen:find("HOSTS, JOBS", 1, true) and seen:find "\nmail " end, "a pane")
      assert.equal(10, #t:lines())
      t:keys "2"
      t:shows "HOSTS, JOBS"
      t:resize(120, 40)
      t:until_seen(function(seen) return select(2, seen:gsub("\n", "")) == 40 and seen:find "FAILURES" end, "all panes")
      t:resize(80, 24)
      t:until_seen(function(seen) return seen:find "\nq quit[^\n]*\n$" end, "24 lines")
      t:keys "1"
    end)
  end)

  it("shows what names and texts hold, and obeys none of it", function()
    local evil = "\27[2J\27[H\27]0;pwned\7\r\n\8\8 \u{9b}31m\u{202e}abc " .. ("\u{4e2d}"):rep(30)
    local names = { "日本語のキュー", "e\u{301}\u{200d}\u{1f468}\u{200d}\u{1f469}", "\u{202e}xoferif" }
    local ids = {}
    for i, name in ipairs(names) do
      ids[i] = assert(handle:queue(name):push("fail", evil, { max_attempts = 1 }))
    end
    local held = assert(handle:queue "wide":push("hold", { says = evil:sub(1, utf8.offset(evil, 30) - 1) .. "end" }))
    eventually(function()
      for _, id in ipairs(ids) do
        if handle:job(id).state ~= "dead" then return false end
      end
      return handle:job(held).progress
    end)
    local t = start(url, { height = 40 })
    t:shows("日本語のキュー", "\\u{202e}xoferif", "\\x1b[2J\\x1b[H\\x1b]0;pwned\\x07")
    local lines = t:lines()
    assert.matches("^nightshift ", lines[1])
    assert.matches("^q quit", lines[40])
    assert.equal(40, #lines)
    assert.equal("nil", tostring(t:screen():find "pwned[^\\]"))
    -- the columns stand below each other, whatever is left of them
    assert.matches("^日本語のキュー +0 +0 +0 +0 +1$", (t:line "日本語のキュー "))
    assert.not_equal("pwned", tmux("display-message", "-p", "-t", t.name, "#{pane_title}"):match "%S+")
    t:keys("3", "Enter")
    t:shows("payload", "\\u001B[2J")
    assert(handle:cancel(held))
    t:close()
    handle:delete { state = "dead" }
  end)

  for _, how in ipairs { "q", "C-c", "TERM", "HUP" } do
    it("gives the terminal back when it ends by " .. how, function()
      local t = start(url)
      t:shows "QUEUES"
      assert.equal("1", tmux("display-message", "-p", "-t", t.name, "#{alternate_on}"):match "%d")
      if how == "q" or how == "C-c" then t:keys(how) else nst.kill(t:pid(), how) end
      t:shows("ended with " .. ({ q = 0, ["C-c"] = 130, TERM = 143, HUP = 129 })[how])
      t:is_as_before()
      t:close()
    end)
  end

  it("gives the terminal back while Ctrl-Z has stopped it, and draws all again after fg", function()
    local t = start(url, { command = STOPPED })
    t:shows("QUEUES", "q quit  ? help")
    t:keys "C-z"
    t:shows "stopped with 148"
    t:is_as_before()
    t:resize(100, 30)
    t:keys "Enter"
    t:until_seen(function(seen)
      return select(2, seen:gsub("\n", "")) == 30 and seen:find "QUEUES" and seen:find "\nq quit[^\n]*\n$"
    end, "30 lines of top")
    assert.is_nil(t:line "stopped with")
    assert.equal("1 0", tmux("display-message", "-p", "-t", t.name, "#{alternate_on} #{cursor_flag}"):match "%d %d")
    t:keys "?"
    t:shows "pause the selected queue"
    t:resize(80, 24)
    t:until_seen(function(seen)
      return select(2, seen:gsub("\n", "")) == 24 and seen:find "\nq quit[^\n]*\n$"
    end, "24 lines of top")
    t:keys "q"
    t:shows "ended with 0"
    t:is_as_before()
    t:close()
  end)

  -- As it is installed, with a fault in what draws.
  it("gives the terminal back after an error of its own", function()
    local prefix = fixture.dir()
    local copy = [[cd "$1" && mkdir -p bin share/lua lib/lua/5.4/nightshift/host && cp "$2/bin/nightshift" bin &&
      cp -r "$3/lua" share/lua/5.4 && cp "$2/nightshift/host/screen.so" lib/lua/5.4/nightshift/host &&
      sed -i '/^function panes.sparkline/a error "a fault"' share/lua/5.4/nightshift/cli/panes.lua]]
    assert.equal(0, proc.run { "sh", "-c", copy, "sh", prefix, proc.build, proc.root })
    local t = start(url, { width = 120, height = 40, program = prefix .. "/bin/nightshift" })
    t:shows("internal error: ", "a fault", "ended with 1")
    t:is_as_before()
    t:close()
  end)

  describe("on a terminal with", function()
    local function colours(env)
      local t = start(url, { env = env })
      t:shows "QUEUES"
      local text = t:screen "-e"
      t:keys "q"
      t:shows "ended with 0"
      t:close()
      return text:find "\27%[[%d;]*3[0-7][;m]" ~= nil, text:find "\27%[[%d;]*7m" ~= nil
    end

    setup(function()
      local id = assert(handle:queue "mail":push("fail", "red", { max_attempts = 1 }))
      eventually(function() return handle:job(id).state == "dead" end)
    end)

    it("colours has some; $NO_COLOR has none, and so has a vt100", function()
      assert.same({ true, true }, { colours {} })
      assert.same({ false, true }, { colours { NO_COLOR = "1" } })
      assert.same({ false, true }, { colours { TERM = "vt100" } })
    end)

    it("ASCII alone gets no other bytes", function()
      assert(handle:queue "日本":push("later", {}, { delay = "1h" }))
      local t = start(url, { env = { LC_ALL = "C" } })
      t:shows("??", "QUEUES")
      assert.is_nil(t:screen():find "[\x80-\xff]")
      t:close()
    end)
  end)

  describe("refuses", function()
    it("what is no terminal", function()
      proc.fails(1, { "top" }, url, "top wants a terminal; `nightshift status` prints what there is")
    end)

    it("a terminal that cannot place its cursor, or that is not known", function()
      local t = start(url, { env = { TERM = "dumb" } })
      t:shows("$TERM is 'dumb'", "ended with 1")
      t:is_as_before()
      t:close()
      t = start(url, { width = 140, env = { TERM = "no-such" } })
      t:shows("$TERM is 'no-such'", "the database of terminals has none of that name", "ended with 1")
      t:close()
    end)

    it("to look more often than each second", function()
      proc.fails(2, { "top", "--every", "0.2s" }, url, "--every: at least 1s, got '0.2s'")
    end)
  end)

  it("says that the database is away, and goes on when it is back", function()
    local proxy = proc.proxy.start(db.shared())
    local t = start(proxy:url(url))
    t:shows "mail "
    proxy:tell "refuse"
    proxy:tell "close"
    t:shows "the database is away, and looked for again: "
    assert.is_truthy(t:line "mail ")
    proxy:tell "admit"
    t:loses "the database is away"
    t:shows "nightshift "
    proxy:tell "freeze"
    nst.kill(t:pid(), "TERM") -- while it waits for an answer, or soon will
    t:shows "ended with 143"
    t:is_as_before()
    t:close()
  end)

  it("says what an account may not see", function()
    local t = start(db.user(url, "SELECT, EXECUTE"))
    t:shows "QUEUES"
    t:keys "p"
    t:shows "DENIED: "
    t:close()
  end)

  it("shows several databases together, and acts on their jobs", function()
    local urls, ids = {}, {}
    for i = 1, 2 do
      local empty = db.shared():empty()
      assert.equal(0, (proc.nightshift({ "init", "--shard", tostring(i) }, empty)))
      urls[i] = ("%s&shard=%d"):format(empty, i)
    end
    local all <close> = assert(nightshift.sharded(urls))
    for i = 1, 2 do ids[i] = assert(all:shard(i):queue "both":push("wide", { n = i }, { delay = "1h" })) end
    local t = start(table.concat(urls, " "))
    assert(all:queue("both"):limit { running = 5 }) -- in each of them
    t:shows("2 databases", "QUEUES 1", "0 ready  0 running  2 scheduled", "0/10")
    t:keys "Enter"
    t:shows("JOBS OF both", tostring(ids[1]), tostring(ids[2]))
    t:keys("Enter")
    t:shows("wide", '{"n":2}')
    t:keys("c", "y")
    t:shows(("job %d is cancelled"):format(ids[2]))
    assert.equal("cancelled", all:job(ids[2]).state)
    t:close()
  end)
end)
