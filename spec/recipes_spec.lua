-- The recipes work: their files run as they stand, beside stand-ins for sendmail and for the encoder.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local page
do
  local file <close> = assert(io.open "doc/recipes.md")
  page = file:read "a"
end

--- The file of the page that holds a text.
local function block(text)
  for code in page:gmatch "```lua\n(.-)```" do
    if code:find(text, 1, true) then return code end
  end
  error("no recipe has " .. text)
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

describe("the recipe of", function()
  local url, handle

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  after_each(function() handle:close() end)

  it("a mailer sends, waits and gives up", function()
    local folder = proc.folder()
    -- Takes a mail to ann, is not ready for bob, and fails for carl.
    write(folder .. "/sendmail", ([[#!/bin/sh
      cat > %s/last
      if grep -q '^To: ann' %s/last; then mv %s/last %s/sent; exit 0; fi
      if grep -q '^To: bob' %s/last; then exit 75; fi
      exit 1
    ]]):gsub("%%s", folder))
    assert(os.execute("chmod +x " .. folder .. "/sendmail"))
    local script = block "/usr/sbin/sendmail":gsub("/usr/sbin/sendmail", folder .. "/sendmail")
    local q = handle:queue "mail"
    local function mail(to, opts) return assert(q:push("mail.send", { to = to, subject = "s", text = "t" }, opts)) end
    local sent, later, failed = mail "ann", mail "bob", mail("carl", { max_attempts = 1 })
    local bad = mail "ann\nBcc: all"
    local status, log = host.drain(url, script, { "--workers", "1", "--drain-within", "0" })
    assert.equal(0, status, log)
    assert.equal("done", handle:job(sent).state)
    assert.is_truthy(read(folder .. "/sent"):find("Message-ID: <" .. handle:job(sent).key, 1, true))
    assert.equal("scheduled", handle:job(later).state)
    assert.equal(0, handle:job(later).attempts)
    assert.is_truthy(handle:job(failed).error:find("sendmail ended with 1", 1, true))
    assert.equal("discarded", handle:job(bad).reason)
  end)

  it("a video pipeline publishes both sizes", function()
    local folder = proc.folder()
    write(folder .. "/push.lua", block "db:flow {")
    write(folder .. "/encoder_api.lua", [[
      local asked = {}
      return {
        start = function(file, height) return file .. "-" .. height end,
        status = function(operation)
          asked[operation] = (asked[operation] or 0) + 1
          return asked[operation] > 1 and { url = "http://" .. operation } or { retry_after = "1" }
        end,
      }]])
    local status, out, errors = proc.run { proc.lua, folder .. "/push.lua", "film", env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, status, errors)
    local id = assert(math.tointeger(tonumber(out:match "^%d+")))
    local script = ("package.path = %q .. package.path\n"):format(folder .. "/?.lua;") ..
      block "encoder_api":gsub("every = 30", "every = 1")
    local ended, log = host.drain(url, script, { "--workers", "1", "--drain" })
    assert.equal(0, ended, log)
    assert.same({ urls = { "http://film-1080", "http://film-480" } }, handle:job(id).result)
  end)

  it("web hooks takes each delivery once", function()
    local folder = proc.folder()
    write(folder .. "/hook.cgi", block "HTTP_X_DELIVERY")
    assert(handle:execute "CREATE TABLE hook (delivery VARCHAR(100) PRIMARY KEY)")
    assert(handle:execute "CREATE TABLE invoice (id BIGINT PRIMARY KEY, paid BOOLEAN)")
    assert(handle:execute "INSERT INTO invoice VALUES (7, FALSE)")
    local function deliver(where)
      local _, out = proc.run { proc.lua, folder .. "/hook.cgi", stdin = '{"invoice": 7, "paid": true}',
        env = { NIGHTSHIFT_URL = where, HTTP_X_DELIVERY = "d1" } }
      return out:match "Status: (%d+)"
    end
    assert.equal("202", deliver(url))
    assert.equal("202", deliver(url))
    assert.equal("503", deliver "mysql://nobody@127.0.0.1:1/none?connect_timeout=1")
    local status, log = host.drain(url, block "hook.handle\"] = function")
    assert.equal(0, status, log)
    assert.equal("202", deliver(url))
    assert.equal(1, assert(handle:execute "SELECT paid FROM invoice")[1].paid)
    assert.equal(1, #assert(handle:jobs {}))
  end)
end)
