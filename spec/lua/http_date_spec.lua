-- Dates of HTTP, and Retry-After.

local http_date = require "nightshift.http_date"

describe("a date of HTTP", function()
  it("is read in all three forms", function()
    for _, text in ipairs { "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
      "Sun Nov  6 08:49:37 1994", "  Sun, 06 Nov 1994 08:49:37 GMT\t" } do
      assert.equal(784111777, http_date.parse(text))
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
          assert(at == http_date.parse(("Mon, %02d %s %d 00:00:00 GMT"):format(day, name, year)), at)
          at = at + 86400
        end
        assert.is_nil(http_date.parse(("Mon, 32 %s %d 00:00:00 GMT"):format(name, year)))
      end
      if not leap then assert.is_nil(http_date.parse(("Mon, 29 Feb %d 00:00:00 GMT"):format(year))) end
    end
  end)

  it("of two digits is at most fifty years ahead", function()
    local now = 1767225600 -- 2026-01-01
    assert.equal(3344976000, http_date.parse("Tuesday, 31-Dec-75 00:00:00 GMT", now))
    assert.equal(220838400, http_date.parse("Friday, 31-Dec-76 00:00:00 GMT", now))
    assert.equal(1798675200, http_date.parse("Thursday, 31-Dec-26 00:00:00 GMT", now))
  end)

  it("is nothing else", function()
    for _, text in ipairs { "", " ", "tomorrow", "Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 UTC",
      "Sun, 06 Nov 1994 08:49:37 +0100", "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
      "Sun, 06 Nov 1994 08:49:61 GMT", "Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT",
      "Son, 06 Nov 1994 08:49:37 GMT", "Sunny, 06-Nov-94 08:49:37 GMT", "Sun, 06-Nov-94 08:49:37 GMT",
      "Sun, 06 Now 1994 08:49:37 GMT", "Sunday, 06-Now-94 08:49:37 GMT", "Sun Now  6 08:49:37 1994",
      "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994 08:49:37 GMT, 120", ("9"):rep(10000) } do
      assert.is_nil(http_date.parse(text), text)
    end
  end)
end)

describe("a Retry-After", function()
  it("is a number of seconds", function()
    for text, delay in pairs { ["120"] = 120, [" 120 "] = 120, ["0"] = 0, ["-5"] = -5, ["1.5"] = 1.5 } do
      assert.equal(delay, http_date.delay(text))
    end
    assert.is_true(http_date.delay(("9"):rep(400)) == math.huge)
    for _, text in ipairs { "", "5m", "0x10", "1e3", "1,2", "nan", "inf", "12 0" } do
      assert.is_nil(http_date.delay(text), text)
    end
  end)

  it("is a date, by the clock of the server that sent it", function()
    local date = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert.equal(60, http_date.delay("Sun, 06 Nov 1994 08:50:37 GMT", date))
    assert.equal(-60, http_date.delay("Sun, 06 Nov 1994 08:48:37 GMT", date))
    assert.equal(60, http_date.delay("Sunday, 06-Nov-94 08:50:37 GMT", date))
  end)

  it("is a date, by our clock when that server told none", function()
    local text = os.date("!%a, %d %b %Y %H:%M:%S GMT", os.time() + 100)
    for _, date in ipairs { "", "yesterday" } do
      local delay = http_date.delay(text, date)
      assert.is_true(delay >= 98 and delay <= 100, delay)
    end
    assert.is_true(http_date.delay(text) >= 98)
  end)
end)
