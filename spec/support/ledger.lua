--- What workers write down of the rows that they work on, in one file, and what it
-- says: who has begun and ended which row, in order.

local ledger = {}

--- Lua text for the top of a handler script: begin(id), and done(id) or left(id), which
-- has not done it, append a line.
---@param path string
function ledger.script(path)
  return ([[
  local file, pid
  local function open() -- in the process that works
    local own <close> = assert(io.open "/proc/self/stat")
    file, pid = assert(io.open(%q, "ab")), own:read "n"
    file:setvbuf "no"
  end
  local function write(what, id)
    if not file then open() end
    assert(file:write(("%%s %%d %%d\n"):format(what, id, pid)))
  end
  local function begin(id) write("begin", id) end
  local function done(id) write("done", id) end
  local function left(id) write("left", id) end ]]):format(path)
end

--- Reads it. Raises when two had a row at once: one has begun it before the other was
-- done or killed.
---@param path string
---@param killed table<integer, boolean>? by process id
---@param orphaned table<integer, boolean>? those whose host was killed: for a moment they go on with what others have
---taken over, and nobody hears of it
---@return table found by row: `begun` and `done`, how often; `first` begin and `last`
-- done, numbers of lines; `running`, by whom. `orphans`: rows that the orphaned have done
function ledger.read(path, killed, orphaned)
  local found, n = { begun = {}, done = {}, first = {}, last = {}, running = {}, orphans = 0 }, 0
  for line in io.lines(path) do
    n = n + 1
    local what, id, pid = line:match "^(%l+) (%d+) (%d+)$"
    id, pid = assert(math.tointeger(tonumber(id)), line), math.tointeger(tonumber(pid))
    if what == "done" and orphaned and orphaned[pid] then found.orphans = found.orphans + 1 end
    local holder = found.running[id]
    local free = not holder or killed and killed[holder]
    local late = orphaned and orphaned[pid] and holder ~= pid and not (what == "begin" and free)
    if what == "begin" and not late then
      assert(free, ("row %d: %d and %d at once"):format(id, holder or 0, pid))
      found.running[id], found.begun[id] = pid, (found.begun[id] or 0) + 1
      found.first[id] = found.first[id] or n
    elseif not late then
      assert(holder == pid, ("row %d is done by %d, but %d has it"):format(id, pid, holder or 0))
      found.running[id] = nil
      if what == "done" then found.done[id], found.last[id] = (found.done[id] or 0) + 1, n end
    end
  end
  return found
end

local counted = {} -- by path: bytes that were read, and lines in them

--- How many lines there are. It only grows, and is asked for often: what is new is read.
---@param path string
function ledger.count(path)
  local known = counted[path] or { at = 0, n = 0 }
  local file <close> = io.open(path, "rb")
  if not file then return 0 end
  if file:seek "end" < known.at then known = { at = 0, n = 0 } end -- another of that name
  file:seek("set", known.at)
  local text = file:read "a"
  for _ in text:gmatch "\n" do known.n = known.n + 1 end
  known.at = known.at + #text
  counted[path] = known
  return known.n
end

return ledger
