# Style, continuous integration, editors.

LINT_C := $(wildcard src/*/*.c src/*/*/*.c bench/*/*.c spec/*/*.c)
LINT_FLAGS = $(CPPFLAGS) $(ALL_SEE) -Ibench/floor $(MARIADB_CFLAGS) $(LUA_CFLAGS) -std=c11 $(WARN) -Werror

#: make lint        check style and layers
.PHONY: lint
lint: deps
	@$(MAKE) --no-print-directory tests
	@luacheck -q --no-color lua spec examples bench library rockspec/*.rockspec .busted
	@$(call SPECS,,$(LUA)) spec/house_spec.lua
	@! command -v clang >/dev/null || { echo "clang: all warnings" && \
	  clang -fsyntax-only $(LINT_FLAGS) $(LINT_C); }
	@! command -v cppcheck >/dev/null || { echo cppcheck && \
	  cppcheck -q --std=c11 --inline-suppr --error-exitcode=1 \
	    --enable=warning,performance,portability \
	    --suppress=memleak $(CPPFLAGS) $(ALL_SEE) src; } # leaks: test-asan finds them

#: make ci          all of these, in slices: .ci/stages says how long each may take
# .ci/stages has the list of stages and the time that each may take.
.PHONY: ci
ci:
	@env -u MAKEFLAGS -u MFLAGS .ci/stages

#: make format      clang-format over the C files
.PHONY: format
format:
	clang-format -i $(wildcard src/*/*.[ch] src/*/*/*.[ch] bench/*/*.c spec/*.c spec/*/*.c)

#: make compile_commands.json    for editors
# From what make would run, so that nothing has to be built for it.
.PHONY: compile_commands.json
compile_commands.json:
	@$(MAKE) -Bn V=1 --no-print-directory all $(O)/bench/floor $(O)/bench/verbs $(O)/bench/strategies > $@.plan
	@$(AWK) -v dir="$(CURDIR)" ' \
	  / -o [^ ]+ .*\.c( |$$)/ && $$1 == "$(firstword $(CC))" { \
	    command = $$0; gsub(/[\\"]/, "\\\\&", command); \
	    file = ""; for (i = 1; i <= NF; i++) if ($$i ~ /\.c$$/) file = $$i; \
	    printf "%s{\"directory\": \"%s\", \"file\": \"%s\",\n \"command\": \"%s\"}", \
	      n++ ? ",\n" : "[\n", dir, file, command \
	  } \
	  END { print n ? "\n]" : "[]" }' $@.plan > $@
	@rm -f $@.plan
