-- db:job and `nightshift show` named the holder with the least id of all who had
-- anything, whoever had the job: MariaDB 10.11 takes MIN over an indexed column
-- from the whole table when the join is with JSON_TABLE.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("the holder of a job", function()
  it("is the one that has it, not the first of all that have any", function()
    local url = db.fresh()
    local first <close> = assert(nightshift.open(url))
    local second <close> = assert(nightshift.open(url))
    local ids = first:queue("q"):push_many { { "a" }, { "b" } }
    local a, b = assert(first:queue("q"):claim()), assert(second:queue("q"):claim())
    assert.same(ids, { a.id, b.id })
    local holders = {}
    for i, id in ipairs(ids) do
      holders[i] = first:job(id).holder
      assert.equal(holders[i], select(2, assert(first:why(id))).holder)
    end
    assert.equal(2, #holders)
    assert.not_equal(holders[1], holders[2])
  end)
end)
