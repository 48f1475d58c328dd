-- A dump names its database in the view. Restored under another name, the view showed
-- the jobs of the original, and the doctor found nothing.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local function tables(url)
  local _, out = proc.nightshift({ "doctor", "--json" }, url)
  for _, check in ipairs(nightshift.decode(out).checks) do
    if check.name == "tables" then return check end
  end
end

it("a view that reads another database is found by the doctor, and made anew by migrate", function()
  local url, name = db.fresh()
  local copy_url, copy = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  assert(handle:queue "q":push("original", 1))
  assert.equal("ok", tables(copy_url).level)
  local text = db.sql(("SELECT view_definition FROM information_schema.views "
    .. "WHERE table_schema = '%s' AND table_name = 'nightshift_jobs'"):format(name))
  db.sql("CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_jobs AS " .. text, copy)
  assert.equal("original", db.sql("SELECT name FROM nightshift_jobs", copy))
  local check = tables(copy_url)
  assert.equal("fail", check.level)
  assert.is_truthy(check.found:find("another database", 1, true), check.found)
  assert.is_truthy(check.advice:find("nightshift migrate", 1, true), check.advice)
  assert.equal(0, (proc.nightshift({ "migrate" }, copy_url)))
  assert.equal("", db.sql("SELECT name FROM nightshift_jobs", copy))
  assert.equal("ok", tables(copy_url).level)
end)
