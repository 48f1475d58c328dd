--- A pusher: single pushes, bulk, in transactions (some left open for a while,
-- some rolled back), and from SQL. usage: pusher.lua URL SEED FOLDER NAME; ends
-- when the file `stop` is in the folder. Its lines in `pushes`:
--
--   intend  TIME TAG HOW N       before anything is sent; jobs are tagged TAG.1 … TAG.N
--   acked   TIME TAG IDS         durable from here on
--   refused TIME TAG CODE        nothing of it may be there
--   rolled  TIME TAG             nor of this
--   doubt   TIME TAG CODE        all or nothing

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local url, seed, folder, name = table.unpack(arg)
math.randomseed(tonumber(seed))
local note = journal.writer(folder, "pushes")
local queues = { "a", "b", "c" }
local db, number = nil, 0

local function some(n, p) return math.random() < p and math.random() * n or nil end

local function options()
  return {
    delay = some(2, 0.2), priority = math.random() < 0.3 and math.random(80, 130) or nil,
    unique = math.random() < 0.1 and "key " .. math.random(30) or nil,
    backoff = 0.2, max_attempts = math.random(2, 4), timeout = 3, max_polls = math.random(6), max_crashes = 3,
  }
end

local function item(tag, i) return { "work", { tag = tag .. "." .. i }, options() } end

-- The last job that certainly exists, which others are made to wait for.
local known

local function after(tag)
  local _, payload, opts = table.unpack(item(tag, 1))
  payload.after, opts.after, opts.on_fail = known, known and { known }, some(1, 0.5) and "run" or nil
  local id, _, code = db:queue(queues[math.random(3)]):push("work", payload, opts)
  return id and { id }, code
end

local function one(tag)
  local job = item(tag, 1)
  local id, _, code = db:queue(queues[math.random(3)]):push(table.unpack(job))
  return id and { id }, code
end

local function bulk(tag, n)
  local items = {}
  for i = 1, n do items[i] = item(tag, i) end
  local ids, _, code = db:queue(queues[math.random(3)]):push_many(items)
  return ids, code
end

-- A row of ours and n jobs in one commit.
local function transaction(tag, n, how)
  local ids, code = {}, nil
  local ran, ok, _, why = pcall(db.transaction, db, function(tx)
    local wrote, _, refused = tx:execute("INSERT INTO torture_note (tag) VALUES (?)", tag)
    for i = 1, n do
      if wrote then wrote, _, refused = tx:queue(queues[math.random(3)]):push(table.unpack(item(tag, i))) end
      ids[i], code = wrote, refused
    end
    if not wrote then error "refused" end
    if how == "slow" or how == "rolled" and math.random(2) == 1 then nst.sleep(math.random() * 2) end
    if how == "rolled" then error "rolled back" end
    return true
  end)
  if how == "rolled" and not code then return nil, "ROLLED" end
  return ran and ok and ids, code or why
end

-- In a transaction: by itself the call is several.
local function sql_after(tag)
  local payload = assert(nightshift.encode { tag = tag .. ".1", after = known })
  local id, code
  local ran, ok, _, why = pcall(db.transaction, db, function(tx)
    local opts = options()
    opts.max_polls, opts.after, opts.on_fail = nil, known and { known }, some(1, 0.5) and "run" or nil
    local called, _, refused = tx:execute("CALL nightshift_push(?, ?, ?, ?)", queues[math.random(3)], "work", payload,
      (assert(nightshift.encode(opts))))
    local rows = called and tx:execute "SELECT @nightshift_id AS id"
    id, code = rows and rows[1].id, refused
    if not id then error "refused" end
    return true
  end)
  return ran and ok and { id }, code or why
end

-- One statement of its own, committed by itself.
local function sql(tag)
  local payload = assert(nightshift.encode { tag = tag .. ".1" })
  local _, opts = nil, options()
  opts.max_polls = nil
  local ok, _, code = db:execute("CALL nightshift_push(?, ?, ?, ?)", queues[math.random(3)], "work", payload,
    assert(nightshift.encode(opts)))
  if not ok then return nil, code == "BUSY" and "GONE" or code end -- cut behind its last row, it is there
  local rows, _, later = db:execute "SELECT @nightshift_id AS id"
  db:execute "CALL nightshift_ring()"
  local id = rows and rows[1].id
  return id and { id }, id and nil or later or "GONE"
end

local HOW = {
  { "one", 10, function(tag) return one(tag) end }, { "bulk", 2, bulk }, { "transaction", 3, transaction },
  { "slow", 1, transaction }, { "rolled", 1, transaction }, { "sql", 2, sql },
  { "after", 4, after }, { "sql_after", 2, sql_after },
}

local function choose()
  local at = math.random(25)
  for _, how in ipairs(HOW) do
    at = at - how[2]
    if at <= 0 then return how end
  end
end

local DOUBT = { GONE = true }

local function push()
  local how = choose()
  local n = how[1] == "bulk" and math.random(2, 30) or how[3] == transaction and math.random(3) or 1
  number = number + 1
  local tag = ("%s.%d"):format(name, number)
  note("intend", tag, how[1], n)
  local ids, code = how[3](tag, n, how[1])
  if ids then
    known = ids[#ids]
    note("acked", tag, table.concat(ids, ","))
  elseif code == "ROLLED" then note("rolled", tag)
  else note(DOUBT[code] and "doubt" or "refused", tag, code or "NONE") end
  return code
end

local function stopping()
  local file = io.open(folder .. "/stop")
  return file and file:close()
end

while not stopping() do
  if not db then
    db = nightshift.open(url)
    if not db then nst.sleep(0.2) end
  elseif push() == "GONE" then
    nst.sleep(0.1)
  else
    nst.sleep(math.random() * 0.1)
  end
end
local words = {}
local stats = db and db:stats()
for key, value in pairs(stats and stats.counters or {}) do words[#words + 1] = key .. "=" .. value end
journal.writer(folder, "counters")("pusher", table.unpack(words))
