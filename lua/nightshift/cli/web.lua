--- Command web: serves pages about the database to browsers.

local context = require "nightshift.cli.context"

local web = { commands = {} }

local LISTEN <const> = "127.0.0.1:7878"
local TOKEN_MIN <const> = 16 -- characters
local READ_TIMEOUT <const>, CONNECT_TIMEOUT <const> = 5, 2 -- s: pages say soon that the database is away
local BODY_MAX <const> = 262144 -- bytes

--- Adds the command to the parser.
function web.define(parser)
  local command = parser:command("web", "Serve pages about queues, jobs and hosts to browsers, with what can be done "
    .. "about them.")
  command:option("--listen", "Where, as ADDRESS:PORT; a port alone is of the loopback. Other machines reach it only "
    .. "with --token-file.", LISTEN):argname "ADDRESS:PORT"
  command:option("--token-file", "File with a text of 16 characters or more: only browsers that were given it see the "
    .. "pages. Default: none."):argname "FILE"
  command:option("--host", "A name by which browsers reach it, beside localhost and addresses in numbers; more than "
    .. "once. Default: none."):count "*":argname "NAME"
  command:option("--prefix", "The path below which a proxy shows it, like /jobs. Default: none."):argname "PATH"
  command:flag("--read-only", "Shows everything and changes nothing.")
  command:option("--redact", "Keys of payloads, results and states, with commas: their values are not shown. "
    .. "Default: none."):argname "KEYS"
end

local function read_token(file)
  if not file then return nil end
  local handle <close>, message = io.open(file, "rb")
  if not handle then context.fail(context.CONFIG, "--token-file: cannot open %s", message) end
  local token = (handle:read "a" or ""):match "^%s*(.-)%s*$"
  if #token < TOKEN_MIN or token:find "[%s%c]" then
    context.fail(context.CONFIG, "--token-file: %s must have one word of %d characters or more", file, TOKEN_MIN)
  end
  return token
end

local function check_prefix(text)
  local prefix = (text or ""):gsub("/+$", "")
  if prefix ~= "" and not prefix:find "^/[%w._~/-]+$" then
    context.fail(context.USAGE, "--prefix: '%s' is no path; expected one like /jobs", text)
  end
  return prefix
end

local function keys_of(text)
  local keys = {}
  for key in (text or ""):gmatch "[^,]+" do keys[#keys + 1] = key:match "^%s*(.-)%s*$" end
  return keys
end

local function load_pages()
  local found, message = pcall(require, "pl.template")
  if found then return require "nightshift.web" end
  context.fail(context.CONFIG, "web needs the Lua module penlight, which Lua 5.4 does not find:\n"
    .. "apt-get install lua-penlight, or luarocks --lua-version=5.4 install penlight\n%s", message:match "[^\n]*")
end

--- Opens the server; it listens on the loopback, or has a token.
local function listen(args, token)
  local guard = require "nightshift.web.guard"
  local server, message = require "nightshift.host".listen { address = args.listen, body_max = BODY_MAX,
    headers = guard.HEADERS }
  if not server then context.fail(context.USAGE, "%s", message) end
  local address = server:address()
  if not token and not guard.is_loopback(address) then
    context.fail(context.USAGE, "--listen: other machines could reach %s, where anybody could cancel jobs: give "
      .. "--token-file, or listen on 127.0.0.1", address)
  end
  return server, address
end

function web.commands.web(args)
  local pages, token, prefix = load_pages(), read_token(args.token_file), check_prefix(args.prefix)
  local db <close> = context.connect(args, { read_timeout = READ_TIMEOUT, connect_timeout = CONNECT_TIMEOUT })
  db._handle:act_as "page"
  local server, address = listen(args, token)
  context.complain("the pages are at http://%s%s/", address, prefix)
  local given = { server = server, db = db, token = token, prefix = prefix, hosts = args.host or {},
    readonly = args.read_only, redact = keys_of(args.redact) }
  if args.connect then given.site = require "nightshift.web.shards".site(given) end
  pages.serve(given)
end

return web
