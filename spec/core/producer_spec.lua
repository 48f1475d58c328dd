-- What a producer in SQL gets: durations as texts, an id, and errors that say their code,
-- what was wrong, and what to write.

local db = require "spec.support.db"
local core = require "nightshift.core"
local nightshift = require "nightshift"

describe("CALL nightshift_push", function()
  local handle, name

  setup(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  local function call(text, ...)
    local rows, message, code = handle:execute("CALL nightshift_push" .. text, ...)
    if not rows then return nil, message, code end
    return assert(handle:execute "SELECT @nightshift_id AS id")[1].id
  end

  local function push(options) return call("('q', 'n', '1', ?)", options) end

  for text, seconds in pairs {
    ["90"] = 90, ["90s"] = 90, ["0.25"] = 0.25, ["1.5s"] = 1.5, ["5m"] = 300, ["1h30m"] = 5400, ["250ms"] = 0.25,
    ["2d"] = 172800, ["1w2d3h4m5s6ms7us"] = 788645.006007, ["7us"] = 0.000007, ["1m1ms"] = 60.001, ["0"] = 0,
  } do
    it("takes " .. text .. " as the same duration as Lua does", function()
      assert.equal(seconds, assert(core.duration(text)) / 1e6)
      local id = assert(push(('{"delay": "%s", "backoff": "%s", "deadline": "100d"}'):format(text, text)))
      local sql = "SELECT due - created AS delay, backoff FROM nightshift_job WHERE id = ?"
      local us = math.floor(seconds * 1e6 + 0.5)
      assert.same({ { delay = us, backoff = us } }, assert(handle:execute(sql, id)))
    end)
  end

  local NONE = { "", "soon", "5 m", "5M", "m", "1m1h", "1m1m", "1.m", ".5s", "1s2", "5min", "--5", ("9"):rep(101),
    "1e3", "1E2", "1e-7", "1e400" }
  for _, text in ipairs(NONE) do
    it("takes '" .. text .. "' for no duration, and says so", function()
      local none, message = push(('{"delay": "%s"}'):format(text))
      assert.is_nil(none)
      assert.is_truthy(message:find("nightshift_push: INVALID: ", 1, true), message)
      assert.is_truthy(message:find("delay", 1, true), message)
    end)
  end

  it("leaves the id of the job in @nightshift_id", function()
    local id = assert(push '{}')
    assert.equal("n", assert(handle:job(id)).name)
  end)

  it("leaves no id of an earlier call where it is refused", function()
    assert(push '{"unique": "u2"}')
    for _, options in ipairs { '{"unique": "u2"}', '{"delay": "soon"}', "{" } do
      assert.is_nil((push(options)))
      assert.is_nil(assert(handle:execute "SELECT @nightshift_id AS id")[1].id)
    end
  end)

  it("keeps the job that has a key, or says which one it is", function()
    local id = assert(push '{"unique": {"key": "u1", "on_conflict": "keep"}}')
    assert.equal(id, push '{"unique": {"key": "u1", "on_conflict": "keep"}}')
    assert.equal(id, handle:queue("q"):push("n", 1, { unique = { key = "u1", on_conflict = "keep" } }))
    for _, unique in ipairs { '"u1"', '{"key": "u1"}', '{"key": "u1", "on_conflict": "refuse"}' } do
      local none, message, code = push(('{"unique": %s}'):format(unique))
      assert.same({ nil, "DUPLICATE" }, { none, code })
      assert.is_truthy(message:find(("nightshift_push: DUPLICATE: job %d"):format(id), 1, true), message)
      assert.is_truthy(message:find("'u1'", 1, true), message)
    end
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_unique_key WHERE ukey = 'u1'", name))
  end)

  for text, words in pairs {
    ["(NULL, 'n', '1', NULL)"] = "INVALID: the queue is NULL",
    ["('', 'n', '1', NULL)"] = "INVALID: the queue is empty",
    ["('q', NULL, '1', NULL)"] = "INVALID: the job name is NULL",
    ["('q', '', '1', NULL)"] = "INVALID: the job name is empty",
    ["('q', 'a\\nb', '1', NULL)"] = "INVALID: the job name has a control character",
    ["(REPEAT('é', 33), 'n', '1', NULL)"] = "INVALID: the queue has 66 bytes, the limit is 64",
    ["('q', 'n', NULL, NULL)"] = "INVALID: the payload is NULL",
    ["('q', 'n', '{', NULL)"] = "INVALID: the payload is not valid JSON",
    ["('q', 'n', '1', '[]')"] = "INVALID: the options are not a JSON object",
    ["('q', 'n', '1', '{\"dely\": 1}')"] = "INVALID: unknown option dely",
    ["('q', 'n', '1', '{\"priority\": \"high\"}')"] = "INVALID: wrong type: priority",
    ["('q', 'n', '1', '{\"priority\": 256}')"] = "INVALID: out of range: priority",
    ["('q', 'n', '1', '{\"delay\": 1e400}')"] = "INVALID: out of range: delay",
    ["('q', 'n', '1', '{\"parent\": 1}')"] = "NOT_FOUND: the parent, job 1, is no live job",
    ["('q', 'n', '1', '{\"after\": [1]}')"] = "NOT_FOUND: job 1",
    ["('q', 'n', '1', '{\"unique\": {\"on_conflict\": \"keep\"}}')"] = "INVALID: unique is a key or",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"on_conflict\": \"drop\"}}')"] = "INVALID: unique is a key or",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"period\": 1}}')"] = "INVALID: unique is a key or",
    [ [[('q', 'n', '1', CONCAT('{"unique": "', REPEAT('k', 191), '"}'))]] ] = "INVALID: the unique key has 191 char",
  } do
    it("refuses " .. text .. " by name", function()
      local none, message = call(text)
      assert.is_nil(none)
      assert.is_truthy(message:find("nightshift_push: " .. words, 1, true), message)
    end)
  end
end)

describe("CALL nightshift_signal", function()
  it("says what it refuses by name", function()
    local _, name = db.fresh()
    for call, words in pairs { ["(1, '1', NULL)"] = "NOT_FOUND: ", ["(1, '{', NULL)"] = "INVALID: the value" } do
      local ok, message = pcall(db.sql, "CALL nightshift_signal" .. call, name)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find("nightshift_signal: " .. words, 1, true), message)
    end
  end)
end)
