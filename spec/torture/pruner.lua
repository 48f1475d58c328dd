--- Prunes while everything runs: trees of its own as soon as they have ended, and what is
-- old (see Cast:plant). usage: pruner.lua URL SEED FOLDER NAME; ends when the file `stop`
-- is there. Its lines in `pushes` are those of a pusher, with `tree` for how, and in `verbs`:
--
--   prune  TIME ROOT intend|ok|CODE     of the whole tree; 0: of what is old

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local url, seed, folder, name = table.unpack(arg)
math.randomseed(tonumber(seed))
local pushes, verbs = journal.writer(folder, "pushes"), journal.writer(folder, "verbs")
local CHILDREN <const> = 1000 -- most of a tree
local db, number = nil, 0

local function stopping()
  local file = io.open(folder .. "/stop")
  return file and file:close()
end

local function node(tag, i)
  return { name = "work", queue = "b", payload = { tag = ("%s.%d"):format(tag, i), kind = "leaf" }, backoff = 0.2,
    timeout = 30, max_attempts = 50, max_crashes = 50, on_fail = "run" }
end

-- A tree's ids, its root first; nil when it may not be there.
local function push()
  number = number + 1
  local tag, n = ("tree.%s.%d"):format(name, number), math.random(CHILDREN)
  local root = node(tag, 1)
  root.children = {}
  for i = 1, n do root.children[i] = node(tag, i + 1) end
  pushes("intend", tag, "tree", n + 1)
  local id, ids, code = db:flow(root)
  if not id then
    pushes(code == "GONE" and "doubt" or "refused", tag, code or "NONE")
    return nil
  end
  local list = { id }
  for i, child in ipairs(ids.children) do list[i + 1] = child.id end
  pushes("acked", tag, table.concat(list, ","))
  return id
end

-- GONE and BUSY are no answers: the same again, over what is left.
local function prune(id, options)
  verbs("prune", id, "intend")
  local n, code, _
  repeat
    n, _, code = db:prune(options)
    local later = code == "GONE" or code == "BUSY"
    if later then nst.sleep(0.1) end
  until not later
  verbs("prune", id, n and "ok" or code or "NONE")
end

local function ended(id)
  local job
  while not (job and job.finished_at) and not stopping() do
    nst.sleep(0.1)
    job = db:job(id)
  end
  return job and job.finished_at
end

while not stopping() do
  db = db or nightshift.open(url)
  local id = db and push()
  if id and ended(id) then
    prune(id, { tree = id })
    prune(0, { done = "1d" })
  else
    nst.sleep(0.2)
  end
end
