# Nightshift: build, test, install. `make help` lists the targets.

CC      ?= cc
AWK     ?= awk
LUA     ?= lua5.4
O       ?= build
PREFIX  ?= /usr/local
BINDIR  ?= $(PREFIX)/bin
LUADIR  ?= $(PREFIX)/share/lua/5.4
LIBDIR  ?= $(PREFIX)/lib/lua/5.4

# Files by name, a list per layer.
BASE := ns_err ns_buf ns_hash ns_number ns_time ns_duration ns_log ns_spool ns_latch ns_dict ns_shared \
        ns_mutex ns_region
CORE := ns_url ns_await ns_db ns_stmt ns_packet ns_handle ns_query ns_session ns_list ns_kind ns_tx ns_volley ns_schema ns_queue ns_edge ns_insert ns_push ns_doubt ns_holder ns_peers \
        ns_rescue ns_lease \
        ns_window ns_lanes ns_range ns_paths ns_only ns_scout ns_shares ns_sweep ns_promote ns_aging ns_claim ns_upcoming \
        ns_read ns_depend ns_left ns_nowhere ns_mend ns_own ns_finish ns_gate ns_fate ns_brood ns_park ns_done ns_settle \
        ns_cycle ns_wait ns_touch ns_owed ns_admin ns_tree ns_unclaimed ns_verb ns_again ns_signal ns_prune ns_slot ns_listen ns_doctor \
        ns_adopt ns_adopt_map ns_adopt_text ns_adopt_put ns_adopt_where ns_adopt_ends ns_adopt_set ns_adopt_run \
        ns_adopt_pick ns_adopt_refuse ns_adopt_claim ns_adopt_seat ns_adopt_settle ns_adopt_free ns_adopt_plan ns_adopt_control \
        ns_adopt_note ns_adopt_error ns_adopt_dead ns_adopt_prune ns_adopt_drain ns_adopt_move ns_adopt_ring \
        ns_ear \
        ns_private ns_home ns_plan ns_guard
LUAC := nsl_module nsl_conv nsl_json nsl_encode nsl_decode nsl_db nsl_admin nsl_push nsl_claim nsl_verdict \
        nsl_jobs nsl_slot nsl_adopt nsl_sql nsl_shared nsl_mutex nsl_hooks
HOST := nsh_main nsh_module nsh_lua nsh_config nsh_host nsh_scripts nsh_signals nsh_dump nsh_table nsh_seat \
        nsh_intake nsh_life nsh_ladder nsh_watch nsh_secrets \
        nsh_names nsh_pace nsh_ring nsh_bell nsh_ear nsh_limits nsh_slot nsh_brood nsh_peer nsh_ctl nsh_ipc \
        nsh_dispatch nsh_cycle nsh_adopted nsh_row_log nsh_hark nsh_patience nsh_feeds nsh_outlook nsh_unsettled nsh_chores nsh_upkeep nsh_slow nsh_owed nsh_listen nsh_mail nsh_backlog nsh_batch \
        nsh_memory nsh_served nsh_reading nsh_zygote nsh_nursery nsh_share nsh_sweep nsh_worker nsh_wire nsh_halt nsh_restore nsh_sockets \
        nsh_quota nsh_confine nsh_single

WARN   := -Wall -Wextra -Wshadow -Wformat=2 -Wstrict-prototypes \
          -Wmissing-prototypes -Wconversion -Wvla -Werror=format-security
# -fcf-protection is x86's; where another compiler sets FORTIFY itself, ours counts.
HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong \
          -fstack-clash-protection \
          $(if $(filter x86_64% i686%,$(shell $(CC) -dumpmachine 2>/dev/null)),-fcf-protection=full)
PKG    := $(shell command -v pkg-config 2>/dev/null || echo false)
MARIADB_CFLAGS ?= $(shell $(PKG) --cflags libmariadb 2>/dev/null)
MARIADB_LIBS   ?= $(shell $(PKG) --libs libmariadb 2>/dev/null)
LUA_CFLAGS     ?= $(shell $(PKG) --cflags lua5.4 2>/dev/null)
LUA_LIBS       ?= $(shell $(PKG) --libs lua5.4 2>/dev/null)
JANSSON_LIBS   ?= $(shell $(PKG) --libs jansson 2>/dev/null)
UV_LIBS        ?= $(shell $(PKG) --libs libuv 2>/dev/null)

# `make DEBUG=1` builds with asserts, tiny first buffers and no optimiser;
# SAN=address,undefined (or thread) adds sanitizers. Each has its own folder:
# O=build/asan make SAN=address,undefined
ifdef DEBUG
OPT := -Og -g3 -DNS_DEBUG -fno-omit-frame-pointer
HARDEN := -fstack-protector-strong -fstack-clash-protection
else
OPT := -O2 -g
endif
ifdef SAN
OPT := -O1 -g3 -DNS_DEBUG -fno-omit-frame-pointer -fsanitize=$(SAN) \
       -fno-sanitize-recover=all
HARDEN :=
endif

CPPFLAGS += -D_GNU_SOURCE -I$(O)/gen -Isrc/base -Isrc/core -Isrc/lua -Isrc/host
CFLAGS   ?= $(OPT)
PIC      := -fPIC
NS_CFLAGS = -std=c11 $(CFLAGS) $(WARN) $(HARDEN) $(PIC) -fvisibility=hidden \
            -pthread -MMD -MP
LDFLAGS  += $(if $(SAN),-fsanitize=$(SAN)) -Wl,-z,relro,-z,now,-z,noexecstack -pthread

# `make V=1` shows the commands.
ifdef V
SAY := @:
Q :=
else
SAY := @printf '  %-5s %s\n'
Q := @
endif

BASE_O := $(BASE:%=$(O)/base/%.o)
CORE_O := $(CORE:%=$(O)/core/%.o) $(O)/gen/ns_sql.o
LUAC_O := $(LUAC:%=$(O)/lua/%.o)
HOST_O := $(HOST:%=$(O)/host/%.o)

MODULE := $(O)/nightshift/core.so
PROGRAM := $(O)/bin/nightshift
LIBRARY := $(O)/libnightshift.a

.PHONY: all
all: $(MODULE) $(PROGRAM)

SCHEMA_SQL := $(sort $(wildcard sql/schema/*.sql))
QUERY_SQL  := $(sort $(wildcard sql/query/*.sql))

$(O)/gen/ns_sql_names.h: sql/embed.awk sql/marks.sql $(QUERY_SQL) $(SCHEMA_SQL)
	@mkdir -p $(@D)
	$(SAY) SQL $@
	$(Q)$(AWK) -v part=header -f sql/embed.awk sql/marks.sql $(SCHEMA_SQL) $(QUERY_SQL) > $@.tmp && mv $@.tmp $@

$(O)/gen/ns_sql.c: sql/embed.awk sql/marks.sql $(QUERY_SQL) $(SCHEMA_SQL) $(O)/gen/ns_sql_names.h
	$(SAY) SQL $@
	$(Q)$(AWK) -v part=source -f sql/embed.awk sql/marks.sql $(SCHEMA_SQL) $(QUERY_SQL) > $@.tmp && mv $@.tmp $@

$(O)/gen/ns_sql.o: $(O)/gen/ns_sql.c
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(NS_CFLAGS) -c -o $@ $<

# Only ns_db.c and ns_stmt.c see mysql.h; only src/lua and the host's Lua
# parts see lua.h: the include paths say so.
$(O)/base/%.o: src/base/%.c | $(O)/gen/ns_sql_names.h
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(NS_CFLAGS) -c -o $@ $<

$(O)/core/%.o: src/core/%.c | $(O)/gen/ns_sql_names.h
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(MARIADB_CFLAGS) $(NS_CFLAGS) -c -o $@ $<

$(O)/lua/%.o: src/lua/%.c | $(O)/gen/ns_sql_names.h
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(LUA_CFLAGS) $(NS_CFLAGS) -c -o $@ $<

# Only the program has these: position independent, but no library.
$(HOST_O): PIC := -fPIE
$(O)/host/%.o: src/host/%.c | $(O)/gen/ns_sql_names.h
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CPPFLAGS) $(LUA_CFLAGS) $(NS_CFLAGS) -c -o $@ $<

$(LIBRARY): $(BASE_O) $(CORE_O)
	$(SAY) AR $@
	$(Q)rm -f $@ && ar rcs $@ $^

# nodelete: lua_close must not unload libmariadb, whose globals and thread
# destructors outlive a Lua state.
$(MODULE): $(LUAC_O) $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -shared -Wl,-z,nodelete $(LDFLAGS) -o $@ $(LUAC_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS)

$(PROGRAM): $(HOST_O) $(LUAC_O) $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(LDFLAGS) -pie -rdynamic -o $@ $(HOST_O) $(LUAC_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) $(LUA_LIBS) -lm

.PHONY: clean
clean:
	rm -rf build

-include $(wildcard $(O)/*/*.d)

# ---------------------------------------------------------------- install

# Program, module and Lua files; the SQL is inside. The program finds the Lua
# files by its own path: ../share/lua/5.4.
.PHONY: install uninstall
install: all
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)/nightshift"
	install -m 755 $(PROGRAM) "$(DESTDIR)$(BINDIR)/nightshift"
	install -m 755 $(MODULE) "$(DESTDIR)$(LIBDIR)/nightshift/core.so"
	cd lua && find nightshift -name '*.lua' \
	  -exec install -D -m 644 {} "$(DESTDIR)$(LUADIR)/{}" \;

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/nightshift"
	rm -rf "$(DESTDIR)$(LIBDIR)/nightshift" "$(DESTDIR)$(LUADIR)/nightshift"

# ------------------------------------------------------------------- demo

# Packs every sub-folder of DIR; see examples/archive. The build is a make of
# its own because `deps` may just have installed what the flags ask for.
DIR ?= /usr/share
.PHONY: demo
demo: export DIR := $(DIR)
demo: deps
	@$(MAKE) $(if $(V),,-s) --no-print-directory all
	@O="$(O)" LUA="$(LUA)" sh examples/archive/demo.sh

# ------------------------------------------------------------------ bench

$(O)/bench/floor: bench/floor.c bench/bench.h
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(MARIADB_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(MARIADB_LIBS)

$(O)/bench/verbs: bench/verbs.c bench/bench.h $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(LIBRARY) $(MARIADB_LIBS)

STRATEGIES := bench/strategies.c bench/bare.c bench/ours.c
$(O)/bench/strategies: $(STRATEGIES) bench/bench.h bench/crew.h $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(MARIADB_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $(STRATEGIES) $(LIBRARY) $(MARIADB_LIBS)

# ARGS="--only work,latency --rounds 5 --scale 0.1 --json FILE"
.PHONY: bench
bench: deps
	@$(MAKE) $(if $(V),,-s) --no-print-directory all $(O)/bench/floor $(O)/bench/verbs
	@O="$(O)" LUA="$(LUA)" sh bench/run.sh $(ARGS)

# Ways of taking rows from a table, side by side: ONLY=checkout,named_lock for some of
# them; DOC=doc/strategies.md writes tables and plots there.
.PHONY: bench-strategies
bench-strategies: deps
	@$(MAKE) $(if $(V),,-s) --no-print-directory all $(O)/bench/floor $(O)/bench/verbs $(O)/bench/strategies
	@O="$(O)" LUA="$(LUA)" ASK=bench/strategies.lua sh bench/run.sh $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(DOC),--doc "$(DOC)") $(ARGS)

# ---------------------------------------------------------------- torture

# Breaks everything for SECONDS, then audits what is left; see
# spec/torture/run.lua. make torture SECONDS=3600 SEED=7 HOSTS=4 WORKERS=16
# FAULTS="worker server" takes only some of the faults.
SECONDS ?= 120
HARNESS = O="$(O)" NIGHTSHIFT_BUILD="$(O)" LUA=$(LUA) LUA_PATH="./?.lua;./lua/?.lua;./lua/?/init.lua;;" \
          LUA_CPATH="$(abspath $(O))/?.so;;" $(LUA)
.PHONY: torture
torture: deps
	@$(MAKE) --no-print-directory tests
	@$(HARNESS) spec/torture/run.lua "$(SECONDS)" "$(SEED)" "$(FAULTS)" "$(HOSTS)" "$(WORKERS)"

# The same under AddressSanitizer and UBSan, with the host's counts checked after each
# event. What any process reports is a failure; nothing is suppressed.
.PHONY: torture-asan torture-asan-run
torture-asan: deps
	@$(MAKE) --no-print-directory O=build/asan SAN=$(SANITIZERS) tests
	@$(MAKE) --no-print-directory O=build/asan torture-asan-run

torture-asan-run: LUA = $(CURDIR)/$(O)/run
torture-asan-run:
	@rm -f $(O)/report.*
	@NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) ASAN_OPTIONS=$(ASAN):abort_on_error=1:$(REPORT) \
	  UBSAN_OPTIONS=print_stacktrace=1:$(REPORT) \
	  $(HARNESS) spec/torture/run.lua "$(SECONDS)" "$(SEED)" "$(FAULTS)" "$(HOSTS)" "$(WORKERS)"; \
	  status=$$?; ! cat $(O)/report.* 2>/dev/null && exit $$status

# Random graphs of jobs on two hosts, one after the other for SECONDS, while
# everything is killed; see spec/tree/dag_spec.lua. SEED=n begins with that one.
.PHONY: test-dags
test-dags: ARGS = --filter "time and again" spec/tree/dag_spec.lua
test-dags: deps
	@$(MAKE) --no-print-directory tests
	@$(call SPECS,LUA=$(LUA) DAG_SECONDS="$(SECONDS)" SEED="$(SEED)",$(LUA))

# A million jobs through hosts, with the size of what claims read; in `make test` there
# are fewer of them.
.PHONY: test-million
test-million: ARGS = --filter "stay small" spec/designs/remedies_spec.lua
test-million: deps
	@$(MAKE) --no-print-directory tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_MANY=1000000,$(LUA))

# Measures how long each fault is felt and writes the table into the README.
ROUNDS ?= 20
.PHONY: recovery
recovery: deps
	@$(MAKE) --no-print-directory tests
	@$(HARNESS) bench/recovery.lua "$(ROUNDS)" README.md

# ------------------------------------------------------------------- help

.PHONY: help
help:
	@echo "make [all]       build program and module into $(O)/"
	@echo "make deps        install the Debian packages that are missing"
	@echo "make test        run all specs, or some: ARGS=spec/core/push_spec.lua"
	@echo "make test-asan   the same under AddressSanitizer and UBSan"
	@echo "make test-valgrind   specs of base, core and binding under valgrind"
	@echo "make test-cut-all    connections cut at every byte of every verb"
	@echo "make fuzz        SECONDS=60: frames, URLs, durations, JSON, options, an equal share each"
	@echo "make test-oom    memory that runs out at every allocation of the module"
	@echo "make test-gc     specs of base, core and binding while the collector runs all the time"
	@echo "make test-tsan   the host's specs under ThreadSanitizer"
	@echo "make test-comma  all specs with a decimal comma in every process"
	@echo "make lint        check style and layers"
	@echo "make ci          all of these, in slices: .ci/stages says how long each may take"
	@echo "make demo        archive the sub-folders of DIR=/usr/share into build/demo"
	@echo "make bench       measure, beside bare SQL; ARGS=\"--only work --json FILE\""
	@echo "make bench-strategies    designs of queues, side by side; ONLY=..., DOC=doc/strategies.md"
	@echo "make torture     break everything for SECONDS=120, then audit; SEED=n"
	@echo "make torture-asan    the same under AddressSanitizer and UBSan"
	@echo "make test-million  a million jobs: what claims read stays small"
	@echo "make test-dags   random graphs of jobs under kills for SECONDS; SEED=n"
	@echo "make recovery    measure what faults cost; writes the README's table"
	@echo "make install     PREFIX=$(PREFIX); also BINDIR, LUADIR, LIBDIR, DESTDIR"
	@echo "make format      clang-format over the C files"
	@echo "make compile_commands.json    for editors"
	@echo "make clean       remove build/"
	@echo "Variables: CC=$(CC) O=$(O) V=1 DEBUG=1 SAN=address,undefined"

# ------------------------------------------------------- compile_commands

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

# ----------------------------------------------------------------- format

.PHONY: format
format:
	clang-format -i $(wildcard src/*/*.[ch] bench/*.c spec/*.c spec/*/*.c)

# ------------------------------------------------------------------- deps

.PHONY: deps
deps:
	@sh .ci/deps

# ------------------------------------------------------------------ tests

# nst.so is what specs need from the system. `run` is a Lua interpreter built
# with the sanitizers; see spec/c/run.c.
$(O)/nst.so: spec/c/nst.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(MARIADB_CFLAGS) $(LUA_CFLAGS) $(NS_CFLAGS) -shared $(LDFLAGS) -o $@ $< \
	  $(MARIADB_LIBS)

$(O)/run: spec/c/run.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(LUA_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -rdynamic -o $@ $< $(LUA_LIBS)

# The same with memory that runs out on demand, and the module linked in.
HEAP_WRAP := malloc calloc realloc strdup free mysql_init mysql_stmt_init luaL_newstate
$(O)/heap: spec/c/run.c spec/c/heap.c $(LUAC_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(LUA_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) $(HEAP_WRAP:%=-Wl,--wrap=%) -rdynamic \
	  -o $@ $^ $(MARIADB_LIBS) $(JANSSON_LIBS) $(LUA_LIBS) -lm

# A proxy that breaks connections in chosen ways.
$(O)/proxy: spec/c/proxy.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(NS_CFLAGS) $(LDFLAGS) -o $@ $<

# Clock and signals of a process, from inside. It is loaded into programs that
# have no sanitizers, so it has none; its signals come until the very end.
$(O)/meddle.so: spec/c/meddle.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE -std=c11 -O2 $(WARN) -fPIC -shared -pthread -Wl,-z,nodelete -o $@ $< -ldl

.PHONY: tests
tests: all $(O)/nst.so $(O)/run $(O)/proxy $(O)/meddle.so

# A run of the suite; $(1): environment, $(2): interpreter. Specs that call
# make must not see this one's flags.
SPECS = env -u MAKEFLAGS -u MFLAGS $(1) NIGHTSHIFT_BUILD="$(O)" O="$(O)" $(2) \
        "$$(command -v busted)" -o spec/support/ci.lua $(ARGS)

# ARGS=spec/core/push_spec.lua or ARGS='--filter "gives a job" spec'
.PHONY: test
test: deps
	@$(MAKE) --no-print-directory tests
	@$(if $(ARGS),,sh spec/support/shards.sh "$(O)") $(call SPECS,LUA=$(LUA),$(LUA))

# The same under AddressSanitizer and UBSan. Specs that build know by SAN.
# Without its hook on thread-local variables: that takes the module's, made
# late, for pointers and crashes the search for leaks (gcc 12, glibc 2.36).
SANITIZERS := address,undefined
ASAN := detect_stack_use_after_return=1:intercept_tls_get_addr=0
REPORT = log_path=$(CURDIR)/$(O)/report
.PHONY: test-asan asan
test-asan asan: deps
	@$(MAKE) --no-print-directory O=build/asan SAN=$(SANITIZERS) tests
	@$(MAKE) --no-print-directory O=build/asan asan-run

.PHONY: asan-run
asan-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/run)

# Memory that runs out at every single allocation of every function of the
# module, under AddressSanitizer.
.PHONY: test-oom oom-run
test-oom: deps
	@$(MAKE) --no-print-directory O=build/asan SAN=$(SANITIZERS) tests build/asan/heap
	@$(MAKE) --no-print-directory O=build/asan oom-run

oom-run: ARGS ?= spec/oom/sweep.lua
oom-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/heap)

# A full collection at every STRIDEth allocation inside the module's functions,
# and at every STRIDEth way in or out. Specs whose work is done by other
# processes have nothing to gain. (`make test-oom` collects at every single
# allocation once.)
STRIDE ?= 97
GC_SPECS := spec/base spec/lua spec/shared/dict_spec.lua spec/shared/mutex_spec.lua \
  $(filter-out %/concurrency_spec.lua \
  %/private_spec.lua %/ambiguity_spec.lua,$(wildcard spec/core/*_spec.lua))
.PHONY: test-gc gc-run
test-gc: deps
	@$(MAKE) --no-print-directory O=build/asan SAN=$(SANITIZERS) tests build/asan/heap
	@$(MAKE) --no-print-directory O=build/asan gc-run

gc-run: ARGS ?= $(GC_SPECS)
gc-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) \
	  NIGHTSHIFT_COLLECT=$(STRIDE) \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/heap)

# The host's specs under ThreadSanitizer. A report does not stop whoever made
# it; any that is left in the end is a failure. No suppressions are needed.
.PHONY: test-tsan tsan-run
test-tsan: deps
	@$(MAKE) --no-print-directory O=build/tsan SAN=thread tests
	@$(MAKE) --no-print-directory O=build/tsan tsan-run

tsan-run: ARGS ?= spec/host
tsan-run:
	@rm -f $(O)/report.*
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=thread \
	  TSAN_OPTIONS="log_path=$(CURDIR)/$(O)/report second_deadlock_stack=1",$(O)/run)
	@! cat $(O)/report.* 2>/dev/null

# The suite in processes that all have a locale with a decimal comma, made here.
COMMA := LC_NUMERIC=de_DE.UTF-8 LOCPATH="$(CURDIR)/$(O)/locale" LD_PRELOAD="$(CURDIR)/$(O)/comma.so"
$(O)/comma.so: spec/c/comma.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -std=c11 -O2 $(WARN) -fPIC -shared -o $@ $<

$(O)/locale/de_DE.UTF-8: .ci/deps
	@mkdir -p $(@D)
	$(Q)localedef --no-archive -i de_DE -f UTF-8 $@ && touch $@

.PHONY: test-comma
test-comma: deps
	@$(MAKE) --no-print-directory tests $(O)/comma.so $(O)/locale/de_DE.UTF-8
	@$(if $(ARGS),,sh spec/support/shards.sh "$(O)") $(call SPECS,$(COMMA) LUA=$(LUA),$(LUA))

# valgrind over what runs in this process: base, core, the binding.
.PHONY: test-valgrind valgrind
test-valgrind valgrind: ARGS ?= spec/base spec/core spec/lua
test-valgrind valgrind: deps
	@$(MAKE) --no-print-directory tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_PATIENCE=20,valgrind -q \
	  --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
	  --child-silent-after-fork=yes $(O)/run)

# Connections cut at every single byte of every verb; some minutes.
.PHONY: test-cut-all
test-cut-all: ARGS = spec/core/ambiguity_spec.lua
test-cut-all: deps
	@$(MAKE) --no-print-directory tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_CUT=all,$(LUA))

# ---------------------------------------------------------------- fuzzing

# Every target of spec/fuzz for an equal share of SECONDS. The seeds are in
# spec/fuzz/corpus; an input that breaks something stays in build/fuzz.
FUZZ := ipc url duration json options
FUZZ_WRAP := ns_open ns_close ns_execute ns_push_jobs ns_settle ns_take_ids ns_signal ns_reprioritise \
             ns_forget_done ns_in_transaction ns_adopt $(addprefix ns_adopted_,at settle touch touch_many dead \
             dead_groups retry retry_all prune drain)
SECONDS ?= 60
FUZZ_FLAGS := CC=clang O=build/fuzz SAN=fuzzer-no-link,address,undefined

.PHONY: fuzz
fuzz: deps
	@$(MAKE) --no-print-directory $(FUZZ_FLAGS) fuzzers
	@O=build/fuzz sh spec/fuzz/run.sh $(SECONDS) $(FUZZ)

.PHONY: fuzzers
fuzzers: $(FUZZ:%=$(O)/fuzz-%)

FUZZ_LINK = $(CC) $(CPPFLAGS) $(NS_CFLAGS) $(LDFLAGS) -fsanitize=fuzzer

$(O)/fuzz-json $(O)/fuzz-options: $(O)/fuzz-%: spec/fuzz/lua.c spec/fuzz/adopted.c spec/fuzz/fuzz.h \
                                     $(LUAC_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) $(LUA_CFLAGS) -DSCRIPT='"spec/fuzz/$*.lua"' $(FUZZ_WRAP:%=-Wl,--wrap=%) \
	  -o $@ $(filter %.c,$^) $(LUAC_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS) $(LUA_LIBS) -lm

$(O)/fuzz-%: spec/fuzz/%.c spec/fuzz/fuzz.h $(O)/host/nsh_ipc.o $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) -o $@ $< $(O)/host/nsh_ipc.o $(LIBRARY) $(MARIADB_LIBS)

# ------------------------------------------------------------------- lint

LINT_C := $(wildcard src/*/*.c bench/*.c spec/*/*.c)
LINT_FLAGS = $(CPPFLAGS) $(MARIADB_CFLAGS) $(LUA_CFLAGS) -std=c11 $(WARN) -Werror

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
	    --suppress=memleak $(CPPFLAGS) src; } # leaks: test-asan finds them

# --------------------------------------------------------------------- ci

# .ci/stages has the list of stages and the time that each may take.
.PHONY: ci
ci:
	@env -u MAKEFLAGS -u MFLAGS .ci/stages
