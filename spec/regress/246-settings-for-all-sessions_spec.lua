-- A variable that the server had set for all sessions lost jobs (completion_type=CHAIN), left
-- them ready (sql_select_limit), or kept a host from working at all; doctor ended with an
-- internal error, and what other options refuse was taken for a read-only server.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local server, url

setup(function() server = db.server() end)
before_each(function() url = server:fresh() end)

-- The setting, and what puts it back.
local SETTINGS = {
  { "completion_type=CHAIN", "completion_type=NO_CHAIN" },
  { "completion_type=2", "completion_type=NO_CHAIN" },
  { "sql_select_limit=1", "sql_select_limit=18446744073709551615" },
  { "sql_safe_updates=1", "sql_safe_updates=0" },
  { "tx_read_only=1", "tx_read_only=0" },
  { "sort_buffer_size=1024", "sort_buffer_size=2097152" },
  { "max_join_size=10, GLOBAL sql_big_selects=0", "max_join_size=18446744073709551615, GLOBAL sql_big_selects=1" },
  { "max_recursive_iterations=0", "max_recursive_iterations=1000" },
  { "sql_auto_is_null=1", "sql_auto_is_null=0" },
  { "unique_checks=0, GLOBAL foreign_key_checks=0", "unique_checks=1, GLOBAL foreign_key_checks=1" },
  { "check_constraint_checks=0", "check_constraint_checks=1" },
}

local HANDLERS = [[return {
  quick = function(job) return job.payload end,
  flaky = function(job) if job.attempts == 0 then job:fail("once", { retry_in = 0 }) end end,
  parent = function(job)
    if job.phase > 0 then return #job.results end
    for i = 1, 20 do job:spawn("quick", i) end
    return job:wait()
  end,
}]]

local function with(setting, fn)
  server:sql("SET GLOBAL " .. setting[1])
  local ok, why = pcall(fn)
  server:sql("SET GLOBAL " .. setting[2])
  if not ok then error(why, 0) end
end

describe("under what a server sets for all sessions,", function()
  for _, setting in ipairs(SETTINGS) do
    it("all kinds of jobs are done, and doctor names it: " .. setting[1], function()
      with(setting, function()
        local handle <close> = assert(nightshift.open(url))
        local q = handle:queue "q"
        local jobs = {}
        for i = 1, 250 do jobs[i] = { "quick", i } end
        assert(q:push_many(jobs))
        assert(q:push "flaky")
        local parent = assert(q:push "parent")
        assert(handle:execute("CALL nightshift_push('q', 'quick', '1', NULL)"))
        local other <close> = assert(nightshift.open(url)) -- sees only what is committed
        assert.equal(253, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        local status, log = host.drain(url, HANDLERS)
        assert.equal(0, status, log)
        assert.equal(0, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        assert.equal(20, handle:job(parent).result)
        local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
        assert.same({ 0, "" }, { exit, err })
        assert.is_truthy(json:find(setting[1]:match "^[%l_]+", 1, true), json)
      end)
    end)
  end

  -- An old piece of advice, which undoes the character set that the client has asked for.
  for _, first in ipairs { "SET NAMES utf8", "SET NAMES latin1, collation_connection = latin1_german1_ci",
    "SET timestamp = 1, autocommit = 0, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', group_concat_max_len = 4" } do
    it("texts stay what they are, and doctor names it: init_connect=" .. first, function()
      local name = db.name(url)
      server:sql(("CREATE OR REPLACE USER plain@localhost; GRANT ALL ON `%s`.* TO plain@localhost"):format(name))
      local setting = { ('init_connect="%s"'):format(first), "init_connect=''" }
      with(setting, function()
        local plain = server:url(name, "plain")
        local handle <close> = assert(nightshift.open(plain))
        local q = assert(handle:queue "emoji 😀")
        local id = assert(q:push("smile 😀", { text = "ü 😀" }, { unique = "key 😀" }))
        local before = handle:job(id)
        assert.is_true(before.created > 1.7e15)
        assert.equal(0, (host.drain(plain, [[return { ["smile 😀"] = function(job)
          job:log "log 😀"
          if job.attempts == 0 then return job:fail("error 😀", { retry_in = 0 }) end
          return { was = job.payload.text, row = job:db():execute("SELECT '😀' AS s")[1].s }
        end }]])))
        local info = handle:job(id)
        assert.same({ "done", "smile 😀", "emoji 😀" }, { info.state, info.name, info.queue })
        assert.same({ was = "ü 😀", row = "😀" }, info.result)
        local other <close> = assert(nightshift.open(url)) -- an account that is spared
        assert.same(info, other:job(id))
        local _, json = proc.nightshift({ "doctor", "--json" }, plain)
        assert.is_truthy(json:find("init_connect=SET", 1, true), json)
      end)
    end)
  end

  it("a limit of memory is the server's trouble, and named", function()
    server:sql "SET GLOBAL max_session_mem_used=8192"
    local none, message, code = nightshift.open(url)
    local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.is_truthy(message:find("max-session-mem-used", 1, true), message)
    assert.same({ 1, "" }, { exit, err })
    assert.is_truthy(json:find("max_session_mem_used", 1, true), json)
    server:sql "SET GLOBAL max_session_mem_used=2097152"
    exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.is_truthy(json:find("max_session_mem_used", 1, true), exit .. json)
  end)

  it("an engine for all tables keeps init from making ours, and is named", function()
    local empty = server:empty()
    server:sql "SET GLOBAL enforce_storage_engine=Aria"
    local exit, _, err = proc.nightshift({ "init" }, empty)
    local _, json = proc.nightshift({ "doctor", "--json" }, empty)
    server:sql "SET GLOBAL enforce_storage_engine=NULL"
    assert.not_equal(0, exit)
    assert.is_nil(err:find("read%-only"), err)
    assert.is_nil(err:find("start the server", 1, true), err)
    assert.is_truthy(json:find("enforce_storage_engine", 1, true), json)
    exit, _, err = proc.nightshift({ "init" }, empty)
    assert.same({ 0, "" }, { exit, err })
  end)
end)
