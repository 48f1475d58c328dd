-- What the figures were measured on: machine, versions, the server's settings.
local nightshift = require "nightshift"
local stage = require "bench.lib.stage"

local machine = {}

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a" or ""
end

local function hardware()
  return {
    processors = tonumber(stage.output_of "nproc"),
    processor = read "/proc/cpuinfo":match "model name%s*:%s*([^\n]*)" or "processor",
    memory_mb = tonumber(read "/proc/meminfo":match "MemTotal:%s*(%d+)") // 1024,
    system = stage.output_of "uname -sr",
    load = read "/proc/loadavg":match "^%S+",
  }
end

local function versions(db)
  return {
    nightshift = nightshift._VERSION, lua = _VERSION, server = assert(db:execute "SELECT VERSION() AS v")[1].v,
    commit = stage.output_of "git rev-parse --short HEAD 2>/dev/null || true",
  }
end

--- All of it; the settings are the lines that run.sh has given to the server.
---@param s table the stage
function machine.facts(s)
  local settings = read(s.build .. "/bench/settings"):gsub("%s+$", ""):gsub("\n", ", ")
  return { machine = hardware(), versions = versions(s.db), settings = settings }
end

return machine
