-- A host that was to end when nothing was left did not look at what the dead had left when
-- that had come to light after its last look, and ended although rows were still taken.

local host = require "spec.support.host"
local lab = require "spec.support.lab"

local db
lab.handles(1, function(handle) db = handle end)

local function all(sql, ...) return assert(db:execute(sql, ...)) end

local MAP = [[return { table = "dk", claimed_by = "cb", strategy = "skip_locked",
  status = { column = "st", open = "o", processing = "p", done = "d" } }]]

it("a drain ends when what a dead holder had is done, too", function()
  all [[CREATE TABLE dk (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9) NOT NULL DEFAULT 'o', cb VARCHAR(64) NULL)]]
  all "INSERT INTO dk () VALUES (), ()"
  local gate = fixture.dir() .. "/gate"
  assert(os.execute("mkfifo " .. gate))
  local h = host.start(lab.url(), ([[return { dk = function(job)
    if job.id == 1 then io.open(%q):read "a" end
  end }]]):format(gate), { "--adopt", fixture.file("map.lua", MAP), "--workers", "1", "--drain" })
  eventually(function() return all "SELECT COUNT(*) AS n FROM dk WHERE st = 'p' AND id = 1"[1].n == 1 end)
  -- the second is a holder's that is not known, as if it had been buried after the look at the start
  all "UPDATE dk SET st = 'p', cb = 'ns:34400:3785bfa9248e7e6a' WHERE id = 2"
  assert(io.open(gate, "w")):close()
  assert.equal(0, h:wait(30))
  assert.equal(2, all "SELECT COUNT(*) AS n FROM dk WHERE st = 'd'"[1].n)
end)
