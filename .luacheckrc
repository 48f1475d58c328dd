std = "lua54"
max_line_length = 120
files["spec"].std = "+busted"
files["spec"].read_globals = { "eventually", "fixture" }
files["spec/helper.lua"].globals = { "eventually", "fixture" }
files["rockspec"].std = "+rockspec"
