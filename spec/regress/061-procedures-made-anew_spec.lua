-- A procedure that was dropped, or whose definer was, stayed away: the tables
-- were of the right version, so no migration made it again, and the doctor said
-- to grant what was not there.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local PROCEDURES = { "nightshift_listen", "nightshift_nudge", "nightshift_push", "nightshift_ring",
  "nightshift_signal" }

describe("migrate, with tables that are current", function()
  local url, name
  before_each(function() url, name = db.fresh() end)

  local function doctor(place)
    local _, out = proc.nightshift({ "doctor", "--json" }, place)
    local found = {}
    for _, check in ipairs(nightshift.decode(out).checks) do found[check.name] = check end
    return found
  end

  local function expect(check, level, found, advice)
    assert.equal(level, check.level, check.found)
    assert.is_truthy(check.found:find(found, 1, true), check.found)
    if advice then assert.is_truthy(check.advice:find(advice, 1, true), check.advice) end
  end

  for _, command in ipairs { "migrate", "init" } do
    it("makes procedures and views anew: " .. command, function()
      for _, procedure in ipairs(PROCEDURES) do db.sql("DROP PROCEDURE " .. procedure, name) end
      db.sql("DROP VIEW nightshift_jobs, nightshift_history", name)
      expect(doctor(url).procedures, "fail", table.concat(PROCEDURES, ", ") .. " not there", "nightshift migrate")
      expect(doctor(url).tables, "fail", "nightshift_history is not there, nightshift_jobs is not there",
        "nightshift migrate")
      local exit, out, err = proc.nightshift({ command }, url)
      assert.same({ 0, "" }, { exit, err })
      assert.matches("^the tables are of version %d+ already; procedures and views were made anew\n$", out)
      local found = doctor(url)
      expect(found.procedures, "ok", "5")
      expect(found.tables, "ok", "")
      expect(found.ring, "ok", "ended a listener's sleep")
    end)
  end

  it("gives them an owner who is there, and leaves who may call them", function()
    local empty, database = db.empty()
    local maker, definer = db.user(empty, "ALL")
    local made <close> = assert(core.open { url = maker, no_schema = true })
    assert(made:migrate())
    local worker, user = db.user(empty, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, database)
    db.sql(("DROP USER %s@localhost"):format(definer))
    local found = doctor(worker)
    expect(found.procedures, "fail", definer .. "@localhost", "nightshift migrate")
    assert.equal(0, (proc.nightshift({ "migrate" }, empty)))
    found = doctor(worker)
    expect(found.procedures, "ok", "4")
    expect(found.ring, "ok", "ended a listener's sleep", nil)
    expect(found.grants, "ok", "worker")
  end)

  it("is told from a right to call that is missing", function()
    local reach, user = db.user(url, "SELECT")
    expect(doctor(reach).ring, "warn", "may not call nightshift_ring", "GRANT EXECUTE")
    expect(doctor(reach).procedures, "ok", "")
    db.sql(("GRANT EXECUTE ON `%s`.* TO %s@localhost; DROP PROCEDURE nightshift_ring"):format(name, user), name)
    local found = doctor(reach)
    expect(found.procedures, "fail", "nightshift_ring", "nightshift migrate")
    expect(found.ring, "warn", "nobody wakes", "see procedures")
    assert.is_nil(found.grants.found:find("EXECUTE on nightshift_ring", 1, true))
  end)

  it("does so while jobs flow and callers are in the middle of a transaction", function()
    local pusher = assert(nightshift.open(url))
    local worker = assert(nightshift.open(url))
    local caller = assert(core.open { url = url })
    local admin <close> = assert(core.open { url = url, no_schema = true })
    assert(pusher:queue("q"):push("first", 1)) -- makes the queue
    assert(worker:queue("q"):claim()):ack()
    assert(caller:begin())
    assert(caller:execute "CALL nightshift_push('q', 'a', '1', NULL)")
    for i = 1, 5 do
      assert(pusher:queue("q"):push("b", i))
      assert(admin:migrate())
      assert(pusher._handle:ring())
      assert(worker:queue("q"):claim { wait = 20 }):ack()
      assert(pusher._handle:execute "CALL nightshift_push('q', 'c', '1', NULL)")
      assert(worker:queue("q"):claim { wait = 20 }):ack()
    end
    assert(caller:execute "CALL nightshift_push('q', 'a', '1', NULL)")
    assert(caller:commit())
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
    for _, handle in ipairs { pusher, worker, caller } do handle:close() end
  end)
end)
