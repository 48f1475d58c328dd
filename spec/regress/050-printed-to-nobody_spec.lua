-- A worker whose handler printed after the reader of its output had gone, or
-- wrote to a program that had ended, was killed by SIGPIPE: a crash of the job,
-- and dead as poison the third time.

local host = require "spec.support.host"
local proc = require "spec.support.proc"

describe("a handler that writes to nobody", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function result(id)
    local job = eventually(function()
      local job = handle:job(id)
      return (job.state == "done" or job.state == "dead") and job
    end)
    assert.same({ "done", 0 }, { job.state, job.crashes }, job.error)
    return job.result
  end

  it("goes on when the reader of standard output has gone", function()
    local path = fixture.dir() .. "/pipe"
    assert(os.execute("mkfifo " .. path))
    local reader = proc.start { "cat", path }
    local h = proc.start { "sh", "-c", [[exec "$@" >]] .. path, "sh", proc.program, "work",
      fixture.file("jobs.lua", [[return { print = function() print "hello" return "printed" end }]]),
      env = { NIGHTSHIFT_URL = url } }
    h:wait_line("host.ready", 20)
    reader:signal "KILL"
    reader:wait()
    assert.equal("printed", result(q:push("print", nil, { max_attempts = 1 })))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is told by its pipe, while programs it starts end by SIGPIPE as ever", function()
    local h = host.start(url, [[return {
      pipe = function()
        local p = io.popen("exec true", "w")
        os.execute "sleep 0.1"
        local ok, message
        repeat
          ok, message = p:write(("x"):rep(1000))
          if ok then ok, message = p:flush() end
        until not ok
        return message
      end,
      child = function() return select(2, os.execute "yes | head -n 1 >/dev/null; kill -PIPE $$") end,
    }]])
    assert.equal("Broken pipe", result(q:push("pipe", nil, { max_attempts = 1 })))
    assert.equal("signal", result(q:push("child", nil, { max_attempts = 1 })))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
