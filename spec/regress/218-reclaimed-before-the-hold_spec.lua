-- A job that came back with a server's word, again{retry_after = …}, slows its whole
-- table. Others had read a quarter of a second before that it may be claimed from, and
-- the row, the first in order, went to one of them at once.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"

setup(lab.fresh)

for _, name in ipairs { "checkout", "job_queue", "migration_task" } do
  for _, strategy in ipairs(designs[name].strategies) do
    it(("nobody claims from %s by %s after a row was told to wait"):format(name, strategy), function()
      local a <close> = lab.open()
      local b <close> = lab.open()
      designs.create(a, name, 3)
      local map = designs.map(name, { strategy = strategy })
      local ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
      local job = assert(ta:claim())
      assert(assert(tb:claim()):ack()) -- knows what is decided
      assert.is_true((job:again { retry_after = 3600 }))
      assert.is_nil(tb:claim())
      assert.is_nil(ta:claim())
      assert.is_true(ta:resume())
      assert.equal(1, assert(ta:claim { wait = 20 }).id)
    end)
  end
end
