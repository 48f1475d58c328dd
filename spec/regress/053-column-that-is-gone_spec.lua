-- A verdict that could not be written because a column of ours was missing was
-- taken for refused: the job failed without a line in the log and ran again,
-- until its attempts were spent.

local db = require "spec.support.db"
local host = require "spec.support.host"

local TABLE = "ALTER TABLE nightshift_finished "

describe("a column that is gone", function()
  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  it("is waited for by a host, which keeps its verdicts", function()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go))
    local id = handle:queue "q":push "hold"
    h:wait_line "^holds"
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=SCHEMA", 20, 2)
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ "held", 1 }, { handle:job(id).result, handle:job(id).run })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is SCHEMA to a handle, whose claim stands", function()
    assert(handle:queue "q":push "job")
    local job = assert(handle:queue "q":claim())
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert.equal("SCHEMA", select(3, job:ack "result"))
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    assert(job:ack "result")
    assert.equal("SQL", select(3, handle:execute "SELECT nothing_of_ours FROM nightshift_job"))
  end)
end)
