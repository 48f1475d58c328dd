-- db:execute said SCHEMA (tables of Nightshift's are missing) of the caller's own, ran the
-- library's statements for texts that begin with "@", and a name of a database that the
-- server refuses was GONE, which programs wait out for ever.

local nightshift = require "nightshift"

local handle, url

with_database(function(opened, _, at) handle, url = opened, at end)

local function code_of(sql, ...) return (select(3, handle:execute(sql, ...))) end

describe("the code of db:execute", function()
  it("is SQL when a table or routine of the caller's is missing", function()
    assert.equal("SQL", code_of "SELECT 1 FROM my_table")
    assert.equal("SQL", code_of "DROP PROCEDURE nope")
    assert.equal("SQL", code_of "CALL nope()")
    assert.equal("SQL", code_of "SELECT 1 FROM nowhere.my_table")
    local code
    handle:transaction(function(tx) code = select(3, tx:execute "SELECT 1 FROM my_table") end)
    assert.equal("SQL", code)
  end)

  it("is SCHEMA when one of ours is", function()
    assert(handle:execute "DROP VIEW nightshift_jobs")
    assert.equal("SCHEMA", code_of "SELECT 1 FROM nightshift_jobs")
    assert.equal("SCHEMA", code_of "CALL nightshift_pull()")
  end)

  it("is SQL for a text that begins with @, whoever knows it", function()
    for _, text in ipairs { "@x", "@queue_list", "@", "@server_now" } do assert.equal("SQL", code_of(text)) end
  end)
end)

describe("a name of a database that the server refuses", function()
  for what, name in pairs { ["is too long"] = ("x"):rep(100), ["is no UTF-8"] = "\xff" } do
    it("is INVALID: it " .. what, function()
      local socket = url:match "unix_socket=([^&]*)"
      local none, message, code = nightshift.open { socket = socket, user = "root", database = name }
      assert.same({ nil, "INVALID" }, { none, code }, message)
      assert.matches("no such name of a database", message)
    end)
  end
end)
