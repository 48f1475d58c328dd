# Style, continuous integration, editors.

LINT_C := $(wildcard src/*/*.c src/*/*/*.c bench/*/*.c spec/*/*.c)
LINT_FLAGS = $(CPPFLAGS) $(ALL_SEE) -Ibench/floor $(MARIADB_CFLAGS) $(LUA_CFLAGS) -std=c11 $(WARN) -Werror

#: make lint        check style and layers
# Its parts side by side, as many as there are processors; each says its output as a whole.
.PHONY: lint
lint: deps
	@$(PARALLEL) tests
	@$(PARALLEL) -Otarget -k lint-cppcheck lint-clang lint-house lint-lua

.PHONY: lint-lua lint-house lint-clang lint-cppcheck
lint-lua:
	@luacheck -q --no-color lua spec examples bench doc library rockspec/*.rockspec .busted

lint-house:
	@$(call SPECS,,$(LUA)) --filter "the house" --filter "the page" --filter-out "the pages'" spec/house_spec.lua spec/pages_spec.lua

lint-clang:
	@! command -v clang >/dev/null || { echo "clang: all warnings" && \
	  clang -fsyntax-only $(LINT_FLAGS) $(LINT_C); }

lint-cppcheck: # leaks: test-asan finds them
	@! command -v cppcheck >/dev/null || { echo cppcheck && \
	  cppcheck -q --std=c11 --inline-suppr --error-exitcode=1 \
	    --enable=warning,performance,portability \
	    --suppress=memleak $(CPPFLAGS) $(ALL_SEE) src; }

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
