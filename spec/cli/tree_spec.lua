-- Commands on a job and all below it, end to end through the program.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

local url, db, q

before_each(function()
  url = server.fresh()
  db = assert(nightshift.open(url))
  q = db:queue "q"
end)

after_each(function() db:close() end)

local function run(argv, env)
  local exit, out, err = proc.nightshift(argv, url, { env = env })
  return { exit = exit, out = out, err = err }
end

local function ok(argv, env)
  local result = run(argv, env)
  assert.equal("", result.err)
  assert.equal(0, result.exit)
  return result.out
end

local function fails(exit, argv, ...)
  local result = run(argv)
  assert.equal(exit, result.exit, result.err .. result.out)
  for _, text in ipairs { ... } do assert.is_truthy(result.err:find(text, 1, true), result.err) end
end

local function family(n)
  local parent = assert(q:push "parent")
  local job = assert(q:claim())
  local kids = {}
  for i = 1, n do kids[i] = assert(job:spawn("kid", i)) end
  assert(job:wait { on_fail = "continue" })
  return parent, kids
end

local function text(id) return tostring(id) end

describe("show --tree", function()
  it("draws all below a job: states, names, ids, progress, errors", function()
    local parent, kids = family(3)
    local deep = assert(q:push("deep", nil, { parent = kids[2] }))
    assert(q:claim():ack())
    assert(q:claim():discard "disk\nfull")
    local third = assert(q:claim())
    assert.equal(kids[3], third.id)
    assert(third:progress(0.4, "page 4"))
    assert.equal(([[
waiting parent %d
├─ done kid %d
├─ dead kid %d: discarded: disk
│  └─ ready deep %d
└─ running kid %d 40%% page 4
1 of 5 done, 1 running, 1 ready, 1 waiting, 1 dead
]]):format(parent, kids[1], kids[2], deep, kids[3]), ok({ "show", text(parent), "--tree" }, { LC_ALL = "C.UTF-8" }))
    local plain = ok({ "show", text(parent), "--tree" }, { LC_ALL = "C" })
    assert.is_nil(plain:find "[\x80-\xFF]")
    assert.is_truthy(plain:find(("|  `- ready deep %d"):format(deep), 1, true), plain)
  end)

  it("cuts long lists and says what is left out", function()
    local parent, kids = family(1500)
    for _, job in ipairs(q:claim_many(1400)) do assert(job:ack()) end
    local out = ok({ "show", text(parent), "--tree", "--children", "3" }, { LC_ALL = "en_GB.utf8" })
    assert.equal(([[
waiting parent %d
├─ done kid %d
├─ done kid %d
├─ done kid %d
└─ … and 1,497 more: 1,397 done, 100 ready
1,400 of 1,501 done, 100 ready, 1 waiting
]]):format(parent, kids[1], kids[2], kids[3]), out)
    local json = nightshift.decode(ok { "show", text(parent), "--tree", "--json" })
    assert.same({ 10, 1390, 100, 1400 },
      { #json.children, json.more.done, json.more.ready, json.counts.done })
    assert.same({ parent, "parent", "waiting" }, { json.id, json.name, json.state })
  end)

  it("of a job without children, or none", function()
    local id = assert(q:push "job")
    assert.equal(("ready job %d\n0 of 1 done, 1 ready\n"):format(id), ok { "show", text(id), "--tree" })
    fails(1, { "show", "4711", "--tree" }, "there is no job 4711", "NOT_FOUND")
    assert.is_nil(ok({ "show", text(id) }):find("\ntree ", 1, true))
    assert(q:claim():ack())
    local parent = family(2)
    assert.is_truthy(ok({ "show", text(parent) }):find("\ntree +0 of 3 done, 2 ready, 1 waiting\n"))
  end)
end)

describe("cancel and retry --tree", function()
  it("show how many they would touch, and want --yes", function()
    local parent, kids = family(3)
    assert(q:claim():ack())
    fails(2, { "cancel", text(parent), "--tree" }, "3 jobs would be cancelled; add --yes")
    assert.equal("waiting", db:job(parent).state)
    assert.equal(("%d: 3 jobs cancelled\n"):format(parent),
      ok { "cancel", text(parent), "--tree", "--yes", "--reason", "wrong file" })
    assert.equal(("with job %d: wrong file"):format(parent), db:job(kids[2]).reason)
    fails(1, { "cancel", text(parent), "--tree", "--yes" }, "has finished already", "STATE")
    fails(2, { "retry", text(parent), "--tree" }, "3 jobs would be retried; add --yes")
    assert.equal(("%d: 3 jobs retried\n"):format(parent), ok { "retry", text(parent), "--tree", "--yes" })
    assert.equal("ready", db:job(kids[2]).state)
    fails(2, { "cancel", "--queue", "q", "--tree" }, "--tree wants job ids")
  end)
end)

describe("pause and resume", function()
  it("take a number for a job and --queue for a queue", function()
    local parent = family(2)
    assert(db:queue "7":push "x")
    assert.equal(("%d: 3 jobs paused\n"):format(parent), ok { "pause", text(parent) })
    local drawn = ok({ "show", text(parent), "--tree" }, { LC_ALL = "C" })
    assert.is_truthy(drawn:find(("waiting parent %d, paused\n"):format(parent), 1, true), drawn)
    assert.is_truthy(drawn:find((", paused with %d\n"):format(parent), 1, true), drawn)
    assert.equal(("%d: 3 jobs resumed\n"):format(parent), ok { "resume", text(parent) })
    assert.equal("7 paused\nq paused\n", ok { "pause", "q", "--queue", "7" })
    assert.equal("q resumed\n", ok { "resume", "q" })
    fails(1, { "pause", "4711" }, "4711: there is no job 4711", "NOT_FOUND")
    fails(1, { "resume", text(parent) }, "is not paused", "STATE")
    fails(2, { "pause" }, "give queue names or job ids")
  end)
end)

describe("reprioritise, run-now and deadline", function()
  it("touch one job, or its tree", function()
    local parent, kids = family(2)
    assert.equal(("%d with priority 7\n"):format(kids[1]), ok { "reprioritise", text(kids[1]), "7" })
    assert.same({ 7, 100 }, { db:job(kids[1]).priority, db:job(kids[2]).priority })
    assert.equal(("%d: 3 jobs with priority 200\n"):format(parent),
      ok { "reprioritise", text(parent), "200", "--tree" })
    assert.equal(200, db:job(kids[1]).priority)
    fails(2, { "reprioritise", text(parent), "256" }, "priority")
    assert(q:push("late", nil, { parent = parent, delay = 60 }))
    assert.equal(("%d: 1 job ready\n"):format(parent), ok { "run-now", text(parent), "--tree" })
    assert.equal(("%d with a deadline in 2h\n"):format(parent), ok { "deadline", text(parent), "2h" })
    assert.is_nil(db:job(kids[1]).deadline)
    assert.equal(("%d: 4 jobs with a deadline in 90\n"):format(parent), ok { "deadline", text(parent), "90", "--tree" })
    assert.is_truthy(db:job(kids[1]).deadline)
    assert.equal(("%d without a deadline\n"):format(kids[1]), ok { "deadline", text(kids[1]), "never" })
    assert.is_nil(db:job(kids[1]).deadline)
    fails(2, { "deadline", text(parent), "soon" }, "soon")
  end)
end)
