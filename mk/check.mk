# Style, continuous integration, editors, the pages as a site. What is measured.

LINT_C := $(wildcard src/*/*.c src/*/*/*.c bench/*/*.c spec/*/*.c)
LINT_FLAGS = -DHEAP $(CPPFLAGS) $(ALL_SEE) -Ibench/floor $(MARIADB_CFLAGS) $(LUA_CFLAGS) -std=c11 $(WARN) -Werror

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

#: make ci          all of these, in slices: .ci/run says how long each may take
# .ci/run has the list of stages and the time that each may take.
.PHONY: ci
ci:
	@env -u MAKEFLAGS -u MFLAGS .ci/run

# What the stages after the specs need, so that it is there before they begin.
.PHONY: ci-builds
ci-builds:
	@$(PARALLEL) O=build/asan SAN=$(SANITIZERS) tests build/asan/heap
	@$(if $(filter test-tsan,$(TURN)),$(PARALLEL) O=build/tsan SAN=thread tests)
	@$(if $(filter fuzz,$(TURN)),$(PARALLEL) $(FUZZ_FLAGS) fuzzers)

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

# The pages as a site, with two more that are made from annotations and the parser.
# What pages link to goes along, so that MkDocs finds each link's end; it fails where one has none.
SITE := README.md CONTRIBUTING.md CHANGELOG.md doc examples src/include $(wildcard src/*/README.md)

#: make pictures    draws doc/pictures/*.svg, by Graphviz
.PHONY: pictures
pictures:
	@$(LUA) doc/generate.lua pictures doc/pictures

#: make docs        README.md and doc/ as a site with a search box, into build/docs/html
.PHONY: docs
docs: all
	@sh .ci/deps docs
	@rm -rf $(O)/docs && mkdir -p $(O)/docs/pages
	@cp -r --parents $(SITE) $(O)/docs/pages
	@$(GENERATE) reference $(O)/docs/pages/doc
	@echo 'table { display: block; overflow-x: auto }' > $(O)/docs/pages/site.css # wide ones, on phones
	@cp doc/mkdocs.yml $(O)/docs && cd $(O)/docs && mkdocs build --quiet --strict
	@echo "open $(O)/docs/html/index.html; for the search box: python3 -m http.server -b 127.0.0.1 -d $(O)/docs/html"

# ---- what is measured

$(O)/bench/floor: bench/floor/floor.c bench/floor/bench.h
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(MARIADB_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(MARIADB_LIBS)

$(O)/bench/verbs: bench/floor/verbs.c bench/floor/bench.h $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(LIBRARY) $(MARIADB_LIBS)

STRATEGIES := bench/designs/strategies.c bench/designs/bare.c bench/designs/ours.c
$(O)/bench/strategies: $(STRATEGIES) bench/floor/bench.h $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(ALL_SEE) -Ibench/floor $(MARIADB_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $(STRATEGIES) $(LIBRARY) $(MARIADB_LIBS)

#: make bench       measure, beside bare SQL; ARGS="--only work --json FILE"
# ARGS="--only work,latency --rounds 5 --scale 0.1 --json FILE"
.PHONY: bench
bench: deps
	@$(PARALLEL) $(if $(V),,-s) all $(O)/bench/floor $(O)/bench/verbs $(O)/proxy
	@O="$(O)" LUA="$(LUA)" sh bench/run.sh $(ARGS)

#: make bench-strategies    designs of queues, side by side; ONLY=..., DOC=doc/strategies.md
# Ways of taking rows from a table, side by side: ONLY=checkout,named_lock for some of
# them; DOC=doc/strategies.md writes tables and plots there.
.PHONY: bench-strategies
bench-strategies: deps
	@$(PARALLEL) $(if $(V),,-s) all $(O)/bench/floor $(O)/bench/verbs $(O)/bench/strategies
	@O="$(O)" LUA="$(LUA)" ASK=bench/designs/strategies.lua sh bench/run.sh $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(DOC),--doc "$(DOC)") $(ARGS)

#: make recovery    measure what faults cost; writes the table of doc/operating.md
# Measures how long each fault is felt and writes the table into doc/operating.md.
ROUNDS ?= 20
.PHONY: recovery
recovery: deps
	@$(PARALLEL) tests
	@$(HARNESS) bench/recovery.lua "$(ROUNDS)" doc/operating.md
