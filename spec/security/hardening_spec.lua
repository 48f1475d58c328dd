-- What the compiler and the linker were asked for stands in what they made.
-- The sanitizers' builds have their own flags.

local proc = require "spec.support.proc"

local PROGRAM = proc.build .. "/bin/nightshift"
local MODULE = proc.build .. "/nightshift/core.so"

local function read(command)
  local pipe <close> = assert(io.popen(command .. " 2>&1"))
  return pipe:read "a"
end

local has_readelf = read "command -v readelf" ~= ""

describe("the built", function()
  if os.getenv "SAN" or not has_readelf then
    return pending "needs readelf and a build without sanitizers"
  end

  it("program is position independent", function()
    assert.is_truthy(read("readelf -hW " .. PROGRAM):find "Type: +DYN")
    assert.is_truthy(read("readelf -dW " .. PROGRAM):find "Flags:[^\n]*PIE")
  end)

  for name, file in pairs { program = PROGRAM, module = MODULE } do
    it(name .. " has no executable stack and no writable relocations", function()
      local segments, dynamic = read("readelf -lW " .. file), read("readelf -dW " .. file)
      assert.is_truthy(segments:find "GNU_STACK[^\n]* RW +0x")
      assert.is_truthy(segments:find "GNU_RELRO")
      assert.is_truthy(dynamic:find "NOW")
      assert.is_nil(dynamic:find "TEXTREL")
    end)

    it(name .. " guards its stack and its buffers", function()
      local symbols = read("nm -D " .. file)
      assert.is_truthy(symbols:find "__stack_chk_fail")
      assert.is_truthy(symbols:find "__memcpy_chk")
    end)
  end

  it("code marks where jumps may land (x86)", function()
    if not read "uname -m":find "x86_64" then return pending "another machine" end
    assert.is_truthy(read("readelf -nW " .. proc.build .. "/core/link/url.o"):find "IBT, SHSTK")
  end)
end)
