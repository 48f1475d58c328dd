-- Texts that are parsed. JSON to and from Lua values, exact numbers, errors that name the place;
-- dates of HTTP. The choice of the database: URLs, option files, and names that are not ASCII.
-- Durations.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local units = require "nightshift.units"

-- A locale with a decimal comma, made here, so that none has to be installed.
local locale = { name = "de_DE.UTF-8" }

-- The folder for LOCPATH, in which the locale lies; the first process makes it.
local function folder()
  local path = proc.build .. "/locale"
  local there = io.open(path .. "/" .. locale.name .. "/LC_NUMERIC")
  if there then
    there:close()
    return path
  end
  local status, _, errors = proc.run {
    "sh", "-c", [[mkdir -p "$1" && localedef --no-archive -i de_DE -f UTF-8 "$1/$2.$$" &&
      { mv -T "$1/$2.$$" "$1/$2" || test -e "$1/$2/LC_NUMERIC"; }]],
    "sh", path, locale.name,
  }
  assert(status == 0, errors)
  return path
end

--- Runs a function while this process has a decimal comma.
---@param fn function
function locale.comma(fn)
  local path, old = os.getenv "LOCPATH", os.setlocale(nil, "numeric")
  nst.setenv("LOCPATH", folder())
  assert(os.setlocale(locale.name, "numeric"))
  local ok, message = pcall(fn)
  os.setlocale(old, "numeric")
  nst.setenv("LOCPATH", path)
  assert(ok, message)
end

local encode, decode, null = core.encode, core.decode, core.null

local function refused(value, message, code)
  local text, got, got_code = encode(value)
  assert.is_nil(text)
  assert.equal(message, got)
  assert.equal(code or "INVALID", got_code)
end

local function roundtrip(text)
  assert.equal(text, encode(decode(text)))
end

-- [[[…]]] with n levels
local function nested(n)
  local t = core.array()
  for _ = 2, n do t = { t } end
  return t
end

describe("a scalar", function()
  it("is a text of its own", function()
    assert.equal("null", encode(nil))
    assert.equal("null", encode(null))
    assert.equal("true", encode(true))
    assert.equal("false", encode(false))
    assert.equal('"x"', encode "x")
    assert.equal("-5", encode(-5))
    assert.equal("x", decode '"x"')
    assert.equal(true, decode " true ")
    assert.equal(null, decode "null")
  end)

  it("needs to be given, though nil is a value", function()
    assert.has_error(function() encode() end)
  end)
end)

describe("an integer", function()
  it("is exact over all 64 bits", function()
    for _, i in ipairs { 0, 1, -1, 9007199254740993, math.maxinteger, math.mininteger } do
      assert.equal(tostring(i), encode(i))
      assert.equal(i, decode(encode(i)))
      assert.equal("integer", math.type(decode(encode(i))))
    end
  end)

  it("beyond 64 bits is refused, with advice", function()
    for _, text in ipairs { "9223372036854775808", "-9223372036854775809", "[1,99999999999999999999]" } do
      local value, message, code = decode(text)
      assert.is_nil(value)
      assert.equal("INVALID", code)
      assert.truthy(message:find("strings", 1, true), message)
    end
  end)
end)

describe("a float", function()
  it("has the fewest digits that read back as the same float", function()
    assert.equal("0.1", encode(0.1))
    assert.equal("0.30000000000000004", encode(0.1 + 0.2))
    assert.equal('[0.1,0.30000000000000004]', encode { 0.1, 0.1 + 0.2 })
    assert.equal("1e300", encode(1e300))
  end)

  it("stays a float when its value is integral", function()
    assert.equal("1.0", encode(1.0))
    assert.equal("-0.0", encode(-0.0))
    assert.equal("float", math.type(decode "1.0"))
    assert.equal("float", math.type(decode "1e5"))
    assert.equal("float", math.type(decode(encode(2.0 ^ 53))))
    assert.equal(-math.huge, 1 / decode "-0.0")
  end)

  it("survives the trip whatever its bits", function()
    math.randomseed(7)
    local tried = 0
    while tried < proc.cases(20000) do
      local f = string.unpack("d", string.pack("j", math.random(0)))
      if f == f and f ~= math.huge and f ~= -math.huge then
        tried = tried + 1
        local back = decode(encode(f))
        assert.equal(f, back)
        assert.equal("float", math.type(back))
      end
    end
  end)

  it("is written with a point whatever the locale says", function()
    local text, value
    locale.comma(function() text, value = encode { 0.5, 0.1 + 0.2 }, decode "0.5" end)
    assert.equal("[0.5,0.30000000000000004]", text)
    assert.equal(0.5, value)
  end)

  it("is refused when JSON has no word for it", function()
    refused(0 / 0, "payload: cannot encode nan")
    refused({ a = { 1, 1 / 0 } }, "payload.a[2]: cannot encode inf")
    refused({ x = -1 / 0 }, "payload.x: cannot encode -inf")
    assert.is_nil((decode "1e999"))
    assert.is_nil((decode "NaN"))
  end)
end)

describe("a string", function()
  it("may hold NUL, quotes, control characters and all of Unicode", function()
    for _, s in ipairs {
      "", "a\0b", "\"\\/\b\f\n\r\t\127", "h\u{e9}llo \u{20ac}", "\u{10FFFF}", "\u{2028}", ("x"):rep(100000),
    } do
      assert.equal(s, decode(encode(s)))
    end
    assert.equal('"a\\u0000b"', encode "a\0b")
    assert.equal('"\u{20ac}"', encode "\u{20ac}")
    assert.equal("\u{1F600}", decode '"\\ud83d\\ude00"')
  end)

  it("is refused when it is not UTF-8, with the place", function()
    for _, s in ipairs { "\xFF", "\xC3", "\xC0\x80", "\xED\xA0\x80", "ok\x80" } do
      refused({ list = { { s } } },
        "payload.list[1][1]: a string is not valid UTF-8; encode bytes as base64 or hex")
    end
    refused({ a = { ["\xFF"] = 1 } }, "payload.a: a key is not valid UTF-8; encode bytes as base64 or hex")
    assert.is_nil((decode '"\xFF"'))
    assert.is_nil((decode '"\\ud800"'))
  end)
end)

describe("a table", function()
  it("with the keys 1 to n is an array", function()
    assert.equal("[1,2,3]", encode { 1, 2, 3 })
    assert.equal("[1,2]", encode { [2] = 2, [1] = 1 })
    assert.equal("[1]", encode { [1.0] = 1 })
  end)

  it("with string keys is an object", function()
    assert.equal('{"a":1}', encode { a = 1 })
    assert.equal('{"":{"1":2}}', encode { [""] = { ["1"] = 2 } })
    assert.same({ a = 1, b = { c = "x" } }, decode(encode { a = 1, b = { c = "x" } }))
  end)

  it("that is empty is an object, unless it is marked", function()
    assert.equal("{}", encode {})
    assert.equal("[]", encode(core.array()))
    assert.equal("[]", encode(core.array {}))
    assert.equal("{}", encode(setmetatable({}, { __jsontype = "object" })))
    assert.equal("[]", encode(setmetatable({}, { __jsontype = "array" })))
  end)

  it("keeps its kind over a round trip", function()
    roundtrip "[]"
    roundtrip "{}"
    roundtrip '[[],{},[[]],{"a":[]},[null,null]]'
    roundtrip '{"1":[]}'
    local list = decode "[]"
    list[1] = 5
    assert.equal("[5]", encode(list))
  end)

  it("has null where JSON has null", function()
    local t = decode '{"a":null,"b":[1,null,3]}'
    assert.equal(null, t.a)
    assert.equal(3, #t.b)
    assert.equal(null, t.b[2])
    assert.equal("[1,null,3]", encode(t.b))
    assert.equal("null", tostring(null))
  end)

  it("is refused when it is a list with holes", function()
    refused({ list = { 1, nil, 3 } },
      "payload.list: a list with holes: 2 items, the last at 3 (use null for a hole)")
    refused({ [5] = 1 }, "payload: a list with holes: 1 items, the last at 5 (use null for a hole)")
    refused({ [math.maxinteger] = 1 },
      "payload: a list with holes: 1 items, the last at 9223372036854775807 (use null for a hole)")
    refused({ [0] = 1 }, "payload: a list has keys 1 to n only")
    refused({ [-1] = 1 }, "payload: a list has keys 1 to n only")
  end)

  it("is refused when it mixes items and names", function()
    refused({ x = { 1, a = 2 } }, "payload.x: both list items and named fields in one table")
    refused(core.array { a = 2 }, "payload: both list items and named fields in one table")
    refused(setmetatable({ 1 }, { __jsontype = "object" }),
      "payload: both list items and named fields in one table")
  end)

  it("is refused when a key is neither", function()
    refused({ [1.5] = 1 }, "payload: a number as a key; keys are strings, or 1 to n")
    refused({ a = { [true] = 1 } }, "payload.a: a boolean as a key; keys are strings, or 1 to n")
    refused({ [{}] = 1 }, "payload: a table as a key; keys are strings, or 1 to n")
    refused({ ["\0"] = 1 }, "payload: a key with a NUL byte")
  end)

  it("is read raw", function()
    local meta = {
      __index = function() error "called" end,
      __pairs = function() error "called" end,
      __len = function() error "called" end,
      __tostring = function() error "called" end,
    }
    assert.equal('{"a":1}', encode(setmetatable({ a = 1 }, meta)))
    assert.equal("[1,2]", encode(setmetatable({ 1, 2 }, meta)))
    assert.equal("{}", encode(setmetatable({}, { __jsontype = print })))
  end)

  it("may appear twice, but not inside itself", function()
    local shared = { 1 }
    assert.equal("[[1],[1]]", encode { shared, shared })
    local t = { a = {} }
    t.a.b = { t }
    refused(t, "payload.a.b[1]: cannot encode a table that contains itself")
  end)
end)

describe("array", function()
  it("marks the table it is given and returns it", function()
    local t = {}
    assert.equal(t, core.array(t))
    assert.equal(t, core.array(t))
    assert.equal("array", getmetatable(t).__jsontype)
    assert.equal(getmetatable(t), getmetatable(decode "[1]"))
  end)

  it("leaves a metatable of somebody else alone", function()
    local t = setmetatable({}, { __index = {} })
    assert.has_error(function() core.array(t) end)
    assert.has_error(function() core.array "x" end)
  end)
end)

describe("what cannot be encoded", function()
  it("is named with its path", function()
    refused({ list = { 1, 2, { x = print } } }, "payload.list[3].x: cannot encode a function")
    refused({ a = io.stdout }, "payload.a: cannot encode a userdata")
    refused({ coroutine.create(print) }, "payload[1]: cannot encode a thread")
    refused(print, "payload: cannot encode a function")
  end)

  it("is named with the caller's word for the value", function()
    local _, message = encode({ x = print }, nil, "result")
    assert.equal("result.x: cannot encode a function", message)
  end)

  it("shows odd keys in quotes, escaped and cut", function()
    refused({ ["a key"] = print }, 'payload["a key"]: cannot encode a function')
    refused({ ["a\n\"\u{e9}"] = print }, 'payload["a\\x0a\\x22\\xc3\\xa9"]: cannot encode a function')
    refused({ ["1a"] = print }, 'payload["1a"]: cannot encode a function')
    refused({ [""] = print }, 'payload[""]: cannot encode a function')
    refused({ [("k"):rep(200)] = print }, 'payload["' .. ("k"):rep(60) .. '..."]: cannot encode a function')
  end)

  it("keeps the message short however long the path", function()
    local t = print
    for _ = 1, 30 do t = { [("name"):rep(15)] = t } end
    local _, message = encode(t)
    assert.is_true(#message < 300)
    assert.truthy(message:find "^payload%.name")
    assert.truthy(message:find "...", 1, true)
    assert.truthy(message:find "name: cannot encode a function$")
  end)

  it("includes what is nested deeper than the server accepts", function()
    assert.is_string(encode(nested(31)))
    local _, message, code = encode(nested(32))
    assert.equal("payload" .. ("[1]"):rep(31) .. ": nested deeper than 31 tables", message)
    assert.equal("INVALID", code)
  end)
end)

describe("the size limit", function()
  it("lets exactly the limit through", function()
    assert.equal('"abc"', encode("abc", 5))
    local text, message, code = encode("abcd", 5)
    assert.is_nil(text)
    assert.equal("TOO_BIG", code)
    assert.truthy(message:find("payload is 6 bytes of JSON, over the limit of 5", 1, true), message)
    assert.truthy(message:find("max_payload", 1, true), message)
  end)

  it("names the size of a value somewhat over it, and stops at one far over it", function()
    local _, message = encode(("x"):rep(2 * 1048576), 1048576)
    assert.truthy(message:find("is 2097154 bytes", 1, true), message)
    local t = { "x" }
    for _ = 1, 29 do t = { t, t } end -- 2^29 leaves
    local text, far, code = encode(t, 1000)
    assert.is_nil(text)
    assert.equal("TOO_BIG", code)
    assert.truthy(far:find("more than", 1, true), far)
  end)

  it("must be positive", function()
    assert.has_error(function() encode(1, 0) end)
    assert.has_error(function() encode(1, -1) end)
    assert.has_error(function() encode(1, 1.5) end)
  end)
end)

describe("decode", function()
  it("says where a text is wrong", function()
    local value, message, code = decode '{"a": [1,\n  2,,]}'
    assert.is_nil(value)
    assert.equal("INVALID", code)
    assert.truthy(message:find("line 2, column 5", 1, true), message)
  end)

  it("refuses whatever is not one JSON value", function()
    for _, text in ipairs {
      "", " ", "[", "]", "[1,]", "{,}", '{"a"}', "{a:1}", "nul", "[1] 2", "'a'", "01", "1.", ".5", "+1", "0x10", "\0",
      '"a', '"\n"', "//x\n1", '{"a\\u0000":1}', "\xEF\xBB\xBF1",
    } do
      local value, message, code = decode(text)
      assert.is_nil(value, text)
      assert.equal("INVALID", code)
      assert.truthy(message:find "^not JSON")
    end
  end)

  it("takes white space around and between", function()
    assert.same({ a = { 1, 2 } }, decode ' \n{ "a" :\t[ 1 , 2 ] }\r\n')
  end)

  it("keeps the last of two equal keys", function()
    assert.equal(2, decode('{"a":1,"a":2}').a)
  end)

  it("reads deeper texts than it would write, up to a limit", function()
    assert.is_table(decode(("["):rep(2000) .. ("]"):rep(2000)))
    local value, _, code = decode(("["):rep(100000))
    assert.is_nil(value)
    assert.equal("INVALID", code)
  end)

  it("raises for what is not a string", function()
    assert.has_error(function() decode() end)
    assert.has_error(function() decode {} end)
  end)
end)

describe("a round trip", function()
  local function scalar()
    local kind = math.random(6)
    if kind == 1 then return math.random(0) end
    if kind == 2 then return (math.random() - 0.5) * 10.0 ^ math.random(-20, 20) end
    if kind == 3 then return math.random(2) == 1 end
    if kind == 4 then return null end
    if kind == 5 then return utf8.char(math.random(0, 0xD7FF), math.random(0xE000, 0x10FFFF)) end
    return ("text"):rep(math.random(0, 5))
  end

  local function value(depth)
    local kind = depth > 0 and math.random(3) or 1
    if kind == 1 then return scalar() end
    local t = kind == 2 and core.array() or {}
    for i = 1, math.random(0, 5) do
      t[kind == 2 and i or ("k" .. i)] = value(depth - 1)
    end
    return t
  end

  it("keeps any value", function()
    math.randomseed(11)
    for _ = 1, proc.cases(2000) do
      local v = value(5)
      local text = assert(encode(v))
      assert.same(v, decode(text))
    end
  end)

  it("never fails on damaged texts", function()
    math.randomseed(12)
    for _ = 1, proc.cases(5000) do
      local text = assert(encode(value(3)))
      local at = math.random(#text)
      text = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + 1)
      local v, message, code = decode(text)
      if message then
        assert.is_nil(v)
        assert.equal("INVALID", code)
      else
        assert.is_string(encode(v))
      end
    end
  end)

  it("agrees with another implementation", function()
    local ok, dkjson = pcall(require, "dkjson")
    if not ok then
      pending "dkjson is not installed"
      return
    end
    math.randomseed(13)
    for _ = 1, proc.cases(500) do
      local text = assert(encode(value(4)))
      local theirs, _, problem = dkjson.decode(text, 1, null)
      assert.is_nil(problem)
      assert.same(theirs, decode(text))
    end
  end)
end)

describe("collecting garbage at every instruction", function()
  -- In a process of its own, with a small heap: this one's is large.
  it("changes nothing", function()
    local status, _, err = proc.run { proc.lua, "-e", [[
    local core = require "nightshift.core"
    local encode, decode = core.encode, core.decode
    debug.sethook(function() collectgarbage() end, "", 1)
    local text = encode { a = { 1, 2.5, "x\u{e9}", core.null, core.array() } }
    local back = encode(decode(text))
    local _, message = encode { a = { print } }
    local _, where = decode "[1,"
    debug.sethook()
    assert(text == back)
    assert(message == "payload.a[1]: cannot encode a function")
    assert(where:find("line 1", 1, true))]] }
    assert.equal(0, status, err)
  end)
end)

-- The message for a text that is not JSON quoted the text as it was, with its newlines. It was
-- also cut in the middle of a character.
describe("a text that is not JSON", function()
  local function message(text)
    local value, why, code = core.decode(text)
    assert.same({ nil, "INVALID" }, { value, code })
    assert.matches("^not JSON: line %d+, column %d+: ", why)
    return why
  end

  it("is quoted on one line", function()
    assert.falsy(message('["a\\\x7Fb\n"]'):find "%c")
    assert.falsy(message('[\n\n"x"\ny\n]'):find "%c")
  end)

  it("is quoted in valid UTF-8", function()
    for n = 1, 200 do
      assert.truthy(utf8.len(message('["' .. ("é"):rep(n) .. '\\x"]')))
    end
    assert.truthy(utf8.len(message "[\xFF]"))
  end)

  it("keeps the letters of other languages", function()
    assert.matches("é", message '["é\\x"]', 1, true)
  end)
end)

-- Dates of HTTP, and Retry-After.
describe("a date of HTTP", function()
  it("is read in all three forms", function()
    for _, text in ipairs { "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
      "Sun Nov  6 08:49:37 1994", "  Sun, 06 Nov 1994 08:49:37 GMT\t" } do
      assert.equal(784111777, units.http_date(text))
    end
  end)

  it("is exact on every day of four centuries", function()
    local names = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" }
    local lengths = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
    local at = 0
    for year = 1970, 2370 do
      local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
      for month, name in ipairs(names) do
        for day = 1, lengths[month] + (month == 2 and leap and 1 or 0) do
          if proc.limit(1) == 1 or year % 100 < 5 then -- where time runs slower, some of the years
            assert(at == units.http_date(("Mon, %02d %s %d 00:00:00 GMT"):format(day, name, year)), at)
          end
          at = at + 86400
        end
        assert.is_nil(units.http_date(("Mon, 32 %s %d 00:00:00 GMT"):format(name, year)))
      end
      if not leap then assert.is_nil(units.http_date(("Mon, 29 Feb %d 00:00:00 GMT"):format(year))) end
    end
  end)

  it("of two digits is at most fifty years ahead", function()
    local now = 1767225600 -- 2026-01-01
    assert.equal(3344976000, units.http_date("Tuesday, 31-Dec-75 00:00:00 GMT", now))
    assert.equal(220838400, units.http_date("Friday, 31-Dec-76 00:00:00 GMT", now))
    assert.equal(1798675200, units.http_date("Thursday, 31-Dec-26 00:00:00 GMT", now))
  end)

  it("is nothing else", function()
    for _, text in ipairs { "", " ", "tomorrow", "Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 UTC",
      "Sun, 06 Nov 1994 08:49:37 +0100", "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
      "Sun, 06 Nov 1994 08:49:61 GMT", "Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT",
      "Son, 06 Nov 1994 08:49:37 GMT", "Sunny, 06-Nov-94 08:49:37 GMT", "Sun, 06-Nov-94 08:49:37 GMT",
      "Sun, 06 Now 1994 08:49:37 GMT", "Sunday, 06-Now-94 08:49:37 GMT", "Sun Now  6 08:49:37 1994",
      "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 08:49:37 GMT, 120", ("9"):rep(10000) } do
      assert.is_nil(units.http_date(text), text)
    end
  end)
end)

describe("a Retry-After", function()
  it("is a number of seconds", function()
    for text, delay in pairs { ["120"] = 120, [" 120 "] = 120, ["0"] = 0, ["-5"] = -5, ["1.5"] = 1.5 } do
      assert.equal(delay, units.retry_after(text))
    end
    assert.is_true(units.retry_after(("9"):rep(400)) == math.huge)
    for _, text in ipairs { "", "5m", "0x10", "1e3", "1,2", "nan", "inf", "12 0" } do
      assert.is_nil(units.retry_after(text), text)
    end
  end)

  it("is a date, by the clock of the server that sent it", function()
    local date = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert.equal(60, units.retry_after("Sun, 06 Nov 1994 08:50:37 GMT", date))
    assert.equal(-60, units.retry_after("Sun, 06 Nov 1994 08:48:37 GMT", date))
    assert.equal(60, units.retry_after("Sunday, 06-Nov-94 08:50:37 GMT", date))
  end)

  it("is a date, by our clock when that server told none", function()
    local text = os.date("!%a, %d %b %Y %H:%M:%S GMT", os.time() + 100)
    for _, date in ipairs { "", "yesterday" } do
      local delay = units.retry_after(text, date)
      assert.is_true(delay >= 98 and delay <= 100, delay)
    end
    assert.is_true(units.retry_after(text) >= 98)
  end)
end)

-- In a program with a locale that has a decimal comma a waiting handle sent thousands of
-- statements a second. Progress was stored as 0, and adopted rows with a number of type DOUBLE
-- failed.
describe("a decimal comma", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function statements()
    return tonumber(assert(handle:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value)
  end

  it("lets who waits sleep", function()
    local before = statements()
    locale.comma(function() assert.is_nil((q:claim { wait = 1.5 })) end)
    assert.is_true(statements() - before < 60, statements() - before)
  end)

  it("stores progress as it was told", function()
    local id = assert(q:push "a")
    local job = assert(q:claim())
    locale.comma(function() assert(job:progress(0.25, "half")) end)
    local info = assert(handle:job(id))
    assert.equal(0.25, info.progress)
    assert.equal("half", info.status)
    assert(job:ack())
  end)

  it("brings adopted rows with fractions whole", function()
    assert(handle:execute [[CREATE TABLE measures (id INT AUTO_INCREMENT PRIMARY KEY, size DOUBLE NOT NULL,
      state ENUM('open', 'busy', 'done', 'failed') NOT NULL DEFAULT 'open')]])
    assert(handle:execute "INSERT INTO measures (size) VALUES (0.5), (1e300)")
    local t = assert(handle:adopt {
      table = "measures", name = "measure", max_attempts = 1,
      status = { column = "state", open = "open", processing = "busy", done = "done", failed = "failed" },
    })
    local sizes = {}
    locale.comma(function()
      for _ = 1, 2 do
        local job = assert(t:claim())
        sizes[#sizes + 1] = job.payload.size
        assert(job:ack())
      end
    end)
    assert.same({ 0.5, 1e300 }, sizes)
    assert.equal(2, assert(handle:execute "SELECT COUNT(*) AS n FROM measures WHERE state = 'done'")[1].n)
  end)
end)

-- ----- URLs

-- Database URLs: what they mean, and what a bad one is told. Seen from Lua:
-- a good one by where it leads, a bad one by its message.
describe("a database URL", function()
  local function open(url) return core.open { url = url, no_schema = true, connect_timeout = 300000 } end

  local function escaped(text)
    return (text:gsub("[^%w]", function(c) return ("%%%02x"):format(c:byte()) end))
  end

  it("may be encoded in every part", function()
    local name, user, password = "data/base ?#@é", "us:er@x%41", "p/a?s#s@w:ö'\"\\ d%"
    db.sql(("CREATE DATABASE `%s`"):format(name))
    db.sql(([[SET sql_mode = 'NO_BACKSLASH_ESCAPES';
      CREATE USER '%s'@localhost IDENTIFIED BY '%s';
      GRANT ALL ON `%s`.* TO '%s'@localhost]]):format(user, password:gsub("'", "''"), name, user))
    local url = ("MySQL://%s:%s@localhost/%s?unix_socket=%s&connect_timeout=1m&max_payload=4096&")
      :format(escaped(user), escaped(password), escaped(name), escaped(db.shared().socket))
    local handle <close> = assert(open(url))
    local rows = assert(handle:execute "SELECT DATABASE() AS db, SUBSTRING_INDEX(USER(), '@', 2) AS user")
    assert.same({ name, user }, { rows[1].db, rows[1].user })
  end)

  it("may have a last @ after others in the password", function()
    db.sql "CREATE USER at@localhost IDENTIFIED BY 'a@b@c'; GRANT ALL ON mysql.* TO at@localhost"
    local handle <close> = assert(open("mariadb://at:a@b@c@localhost/mysql?unix_socket=" .. db.shared().socket))
    assert.is_true(handle:is_open())
  end)

  it("takes IPv6 in brackets, with and without a port", function()
    for _, host in ipairs { "[::1]:1", "[%3a%3a1]:1" } do
      local none, message, code = open("mysql://u:secret@" .. host .. "/x")
      assert.same({ nil, "GONE" }, { none, code })
      assert.is_truthy(message:find("::1", 1, true), message)
    end
    assert.equal("GONE", select(3, open "mysql://[::1]/x?connect_timeout=300ms"))
  end)

  it("takes the path of a unix socket for a host", function()
    local handle <close> = assert(open(("mysql://%s@%s/mysql"):format(db.account, escaped(db.shared().socket))))
    assert.is_true(handle:is_open())
  end)

  local bad = {
    { "", "must begin with mysql:// or mariadb://" },
    { "postgres://u:secret@h/x", "must begin with mysql:// or mariadb://" },
    { "mysql:/h/x", "must begin with mysql:// or mariadb://" },
    { "mysql://u:secret@h:port/x", "port is not a number from 1 to 65535" },
    { "mysql://h:0/x", "port is not a number" },
    { "mysql://h:65536/x", "port is not a number" },
    { "mysql://h:99999999999999999999/x", "port is not a number" },
    { "mysql://::1/x", "port is not a number" },
    { "mysql://[::1/x", "an IPv6 host is written [address]" },
    { "mysql://[]/x", "an IPv6 host is written [address]" },
    { "mysql://[::1]x/y", "an IPv6 host is written [address]" },
    { "mysql://a,,b/x", "one is empty" },
    { "mysql://a,b,/x", "one is empty" },
    { "mysql://a%2Cb/x", "the host contains an encoded comma" },
    { "mysql://a,b%2Cc/x", "has a comma of its own" },
    { "mysql://u:secret@a:port,b/x", "the port of one is not a number from 1 to 65535" },
    { "mysql://a:65536,b/x", "the port of one is not a number" },
    { "mysql://[::1,b/x", "one is no address" },
    { "mysql://[]:1,b/x", "one is no address" },
    { "mysql://[::1]x,b/x", "one is no address" },
    { "mysql://" .. ("a"):rep(256) .. ",b/x", "one is too long" },
    { "mysql://a,b/x?unix_socket=/s", "unix_socket is of one server" },
    { "mysql://h/a/b", "more than one /" },
    { "mysql://h/x%zz", "database name a % is not followed by two hexadecimal digits" },
    { "mysql://u:secret%@h/x", "password a % is not followed" },
    { "mysql://u%4@h/x", "user name a % is not followed" },
    { "mysql://h/x%00y", "database name contains a NUL" },
    { "mysql://u:%00@h/x", "password contains a NUL" },
    { "mysql://h%0a/x", "host contains a control character" },
    { "mysql://h/x y", "a space or a control character" },
    { "mysql://h/x\n", "a space or a control character" },
    { "mysql://u:12/secret@h/x", "an @ stands behind the host" },
    { "mysql://u:pass/secret@h/x", "an @ stands behind the host" },
    { "mysql://u:pass?secret@h/x", "an @ stands behind the host" },
    { "mysql://u:12#secret@h/x", "contains a #" },
    { "mysql://a,u:secret/x", "the port of one is not a number" },
    { "mysql://h/x?passwrod=secret1", "unknown key 'passwrod'; the keys are ca, cert, connect_timeout, file" },
    { "mysql://h/x?%27;=1", "unknown key; the keys are" },
    { "mysql://h/x?ca", "ca has no value" },
    { "mysql://h/x?tls=", "tls has no value" },
    { "mysql://h/x?ca=1&ca=2", "ca is given twice" },
    { "mysql://h/x?tls=maybe", "tls must be off, verify or trust, got 'maybe'" },
    { "mysql://h/x?connect_timeout=soon", "connect_timeout: bad duration 'soon'" },
    { "mysql://h/x?connect_timeout=0", "connect_timeout must be above zero" },
    { "mysql://h/x?max_payload=-1", "max_payload must be a number of bytes" },
    { "mysql://h/x?max_payload=1e6", "max_payload must be a number of bytes, got '1e6'" },
    { "mysql://h/x?max_payload=99999999999", "max_payload must be a number of bytes" },
  }
  for _, case in ipairs(bad) do
    it(("refuses %q and says why"):format(case[1]), function()
      local none, message, code = open(case[1])
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find(case[2], 1, true), message)
      assert.is_nil(message:find "secret[^1]")
      assert.is_nil(message:find "secret$")
    end)
  end

  it("never crashes the parser, whatever its bytes", function()
    math.randomseed(20)
    local pieces = { "mysql://", "mariadb://", "u", ":", "@", "/", "?", "&", "=", "%", "%4", "%41", "[", "]", "#", "ca",
      "tls", "port", "\255", "\1", "::", "12", "" }
    for _ = 1, proc.cases(3000) do
      local parts = { "mysql://" }
      for i = 2, math.random(2, 12) do parts[i] = pieces[math.random(#pieces)] end
      -- A socket that is not there keeps a good one from connecting.
      local none, message, code = core.open { url = table.concat(parts), socket = "/nonexistent/s", database = "x",
        no_schema = true }
      assert.is_nil(none)
      assert.is_truthy((code == "INVALID" or code == "GONE") and #message > 0, message)
    end
  end)
end)

-- `database=` in an option file was not taken for a database, while host, user,
-- password and port of the same file were.
describe("a database that an option file names", function()
  local url, name, file

  before_each(function()
    url, name = db.fresh()
    file = fixture.file("my.cnf", ("[client]\nsocket=%s\nuser=root\ndatabase=%s\n[other]\ndatabase=nowhere\n"):format(
      url:match "unix_socket=([^&]*)", name))
  end)

  local function where(options)
    local handle <close> = assert(nightshift.open(options))
    return handle:execute("SELECT DATABASE() AS db")[1].db
  end

  it("is used when nothing else names one", function()
    assert.equal(name, where { file = file })
    assert.equal(name, where { url = "mysql:///?file=" .. file })
    assert.equal(name, where { url = "mysql://localhost?file=" .. file })
    local exit, out, err = proc.nightshift({ "status" }, "mysql:///?file=" .. file)
    assert.equal(0, exit, err)
    assert.is_truthy(out)
  end)

  it("is not used when the URL names one", function()
    local _, other = db.fresh()
    assert.equal(other, where { url = "mysql:///" .. other .. "?file=" .. file })
  end)

  it("is named when it does not exist", function()
    local none, message, code = nightshift.open { file = file, group = "other" }
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("'nowhere' does not exist", 1, true), message)
  end)

  it("that nobody names is asked for", function()
    local socket = url:match "unix_socket=([^&]*)"
    local plain = fixture.file("plain.cnf", ("[client]\nsocket=%s\nuser=root\n"):format(socket))
    local none, message, code = nightshift.open { file = plain }
    assert.is_nil(none)
    assert.is_truthy(message:find("no database is named", 1, true), message)
    assert.equal("INVALID", code)
  end)
end)

-- A server may give every client a character set of its own
-- (skip-character-set-client-handshake). It reads the database's name at the connect in that
-- one: `bühne` was unknown.
describe("a database whose name is not ASCII", function()
  local host = require "spec.support.host"

  local NAME = "bühne-日本"

  local server

  setup(function()
    server = db.server "character-set-server=latin1\nskip-character-set-client-handshake\n"
    server:sql(("CREATE DATABASE `%s`"):format(NAME))
  end)

  it("is found, whatever character set a server gives its clients", function()
    local url = server:url(NAME)
    assert.equal(0, (proc.nightshift({ "init" }, url)))
    local encoded = url:gsub("[\x80-\xFF]", function(byte) return ("%%%02X"):format(byte:byte()) end)
    local options = ("[client]\nuser=root\nsocket=%s\ndatabase=%s\n"):format(server.socket, NAME)
    options = fixture.file("my.cnf", options)
    for _, to in ipairs { url, encoded, "file", false } do
      local handle <close> = assert(nightshift.open(to == "file" and { file = options } or to or
        { user = "root", socket = server.socket, database = NAME }))
      assert.equal(NAME, handle:execute("SELECT DATABASE() AS name")[1].name)
      local id = assert(handle:queue "q":push("echo", "ü 😀"))
      assert.equal(0, (host.drain(url, [[return { echo = function(job)
        return { job.payload, job:db():execute("SELECT DATABASE() AS name")[1].name }
      end }]])))
      assert.same({ "ü 😀", NAME }, handle:job(id).result)
    end
  end)

  it("is named where it is not there, or not ours", function()
    server:sql "CREATE USER weak@localhost"
    for code, to in pairs { SCHEMA = server:url "böse", DENIED = server:url(NAME, "weak") } do
      local none, message, got = nightshift.open(to)
      assert.same({ code = code }, { none, code = got })
      assert.is_truthy(message:find(db.name(to), 1, true), message)
    end
  end)
end)

-- db:execute said SCHEMA (tables of Nightshift's are missing) of the caller's own, ran the
-- library's statements for texts that begin with "@". And a name of a database that the server
-- refuses was GONE, which programs wait out for ever.
describe("codes:", function()
  local handle, url

  with_database(function(opened, _, at) handle, url = opened, at end)

  local function code_of(sql, ...) return (select(3, handle:execute(sql, ...))) end

  describe("the code of db:execute", function()
    it("is SQL when a table or routine of the caller's is missing", function()
      assert.equal("SQL", code_of "SELECT 1 FROM my_table")
      assert.equal("SQL", code_of "DROP PROCEDURE nope")
      assert.equal("SQL", code_of "CALL nope()")
      assert.equal("SQL", code_of "SELECT 1 FROM nowhere.my_table")
      local code
      handle:transaction(function(tx) code = select(3, tx:execute "SELECT 1 FROM my_table") end)
      assert.equal("SQL", code)
    end)

    it("is SCHEMA when one of ours is", function()
      assert(handle:execute "DROP VIEW nightshift_jobs")
      assert.equal("SCHEMA", code_of "SELECT 1 FROM nightshift_jobs")
      assert.equal("SCHEMA", code_of "CALL nightshift_pull()")
    end)

    it("is SQL for a text that begins with @, whoever knows it", function()
      for _, text in ipairs { "@x", "@queue_list", "@", "@server_now" } do assert.equal("SQL", code_of(text)) end
    end)
  end)

  describe("a name of a database that the server refuses", function()
    for what, name in pairs { ["is too long"] = ("x"):rep(100), ["is no UTF-8"] = "\xff" } do
      it("is INVALID: it " .. what, function()
        local socket = url:match "unix_socket=([^&]*)"
        local none, message, code = nightshift.open { socket = socket, user = "root", database = name }
        assert.same({ nil, "INVALID" }, { none, code }, message)
        assert.matches("no such name of a database", message)
      end)
    end
  end)
end)

-- Durations as people write them.
describe("a duration", function()
  local SECOND = 1000000

  local function refuses(value, why)
    local us, message, code = core.duration(value)
    assert.is_nil(us)
    assert.equal("INVALID", code)
    assert.truthy(message:find(why, 1, true), message)
  end

  it("is a number of seconds", function()
    assert.equal(0, core.duration(0))
    assert.equal(90 * SECOND, core.duration(90))
    assert.equal(1500000, core.duration(1.5))
    assert.equal("integer", math.type(core.duration(1.5)))
  end)

  it("is a text of seconds without a unit", function()
    assert.equal(30 * SECOND, core.duration "30")
    assert.equal(SECOND // 2, core.duration "0.5")
  end)

  it("is a number and a unit", function()
    local texts = {
      ["1us"] = 1, ["500ms"] = 500000, ["5s"] = 5 * SECOND, ["5m"] = 300 * SECOND,
      ["2h"] = 7200 * SECOND, ["2d"] = 2 * 86400 * SECOND, ["1w"] = 7 * 86400 * SECOND, ["0s"] = 0,
    }
    for text, us in pairs(texts) do assert.equal(us, core.duration(text), text) end
  end)

  it("is a sequence of them, from large to small", function()
    assert.equal(5400 * SECOND, core.duration "1h30m")
    assert.equal(((7 + 1) * 86400 + 3600 + 60 + 1) * SECOND + 1001, core.duration "1w1d1h1m1s1ms1us")
  end)

  it("has exact fractions, rounded to the nearest microsecond", function()
    assert.equal(100000, core.duration "0.1s")
    assert.equal(1500000, core.duration "1.5s")
    assert.equal(1, core.duration "0.5us")
    assert.equal(0, core.duration "0.4us")
    assert.equal(333333, core.duration "0.333333333333333333333333333333s")
    assert.equal(604800 * SECOND, core.duration "0.999999999999999999999w")
    assert.equal(86400000001, core.duration "1.00000000001157408d") -- 1 day and 1.0000005 µs
  end)

  it("is refused when it is negative, not a number or endless", function()
    refuses(-1, "0 or more")
    refuses(-0.001, "0 or more")
    refuses("-5m", "negative")
    refuses(0 / 0, "not a number")
    refuses(1 / 0, "1000 years")
    refuses("nan", "number is missing")
    refuses("inf", "number is missing")
  end)

  it("is refused when it is longer than 1000 years", function()
    assert.equal(31556952000 * SECOND, core.duration(31556952000))
    assert.equal(31556952000 * SECOND, core.duration "31556952000s")
    refuses(31556953000, "1000 years")
    refuses("31556952000.1s", "1000 years")
    refuses("52178w", "1000 years")
    refuses("52177w400d", "1000 years")
    refuses(("9"):rep(400), "too long")
    refuses(math.maxinteger, "1000 years")
  end)

  it("is refused when it is junk, with an example of a good one", function()
    for _, text in ipairs {
      "", " ", "5 m", " 5m", "5m ", "m", "5x", "5M", "5mm", "1e3", "0x10", "+5", "1.", ".5", "1..5s", "1,5s",
      "5m\0", "\0", "1h30", "30m1h", "5m5m", "1h-5m", "5\xC2\xB5s", ("a"):rep(10000),
    } do refuses(text, '"5m"') end
  end)

  it("quotes a bad text safely", function()
    local _, message = core.duration("5\n\27[31m" .. ("x"):rep(1000))
    assert.truthy(message:find("bad duration '5??[31mxxx", 1, true), message)
    assert.is_nil(message:find "%c")
    assert.is_true(#message < 300)
  end)

  it("raises for a value of another type", function()
    assert.has_error(function() core.duration() end)
    assert.has_error(function() core.duration {} end)
    assert.has_error(function() core.duration(true) end)
  end)

  it("reads back whatever random texts it accepts, and never fails otherwise", function()
    math.randomseed(42)
    local alphabet = "0123456789.wdhmsu -"
    for _ = 1, proc.cases(8000) do
      local chars = {}
      for i = 1, math.random(0, 8) do
        local at = math.random(#alphabet)
        chars[i] = alphabet:sub(at, at)
      end
      local us, message, code = core.duration(table.concat(chars))
      if us then
        assert.is_true(us >= 0)
        assert.equal(us, core.duration(us .. "us"))
      else
        assert.equal("INVALID", code)
        assert.is_string(message)
      end
    end
  end)
end)
