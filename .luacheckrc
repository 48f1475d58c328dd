std = "lua54"
max_line_length = 120
files["spec"].std = "+busted"
files["spec"].read_globals = { "eventually", "fixture", "with_database" }
files["spec/helper.lua"].globals = { "eventually", "fixture", "with_database" }
files["rockspec"].std = "+rockspec"

-- an annotation is one line
files["library"] = { max_line_length = false }
