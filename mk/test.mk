# The specs, and the same under tools that find faults. Runs that break things; random inputs.

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
$(O)/heap: spec/c/run.c $(LUAC_O) $(PRIV_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(CC) -DHEAP $(CPPFLAGS) $(ALL_SEE) $(LUA_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) $(HEAP_WRAP:%=-Wl,--wrap=%) -rdynamic \
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

# The checks in C: of the host's pure parts, and the crash sweep of the shared dict.
$(O)/host-units: spec/unit/host.c $(filter-out $(O)/host/main.o,$(HOST_O)) $(LUAC_O) $(PRIV_O) $(LIBRARY)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_SEE) $(LUA_CFLAGS) $(NS_CFLAGS) -UNDEBUG $(LDFLAGS) -o $@ \
	  $(filter-out %.h,$^) $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) $(LUA_LIBS) -lm

$(O)/shared-units: spec/unit/shared.c src/base/shared/dict.c $(filter-out $(O)/base/shared/dict.o,$(BASE_O))
	$(Q)$(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) -DNS_CRASH -UNDEBUG $(LDFLAGS) -o $@ $(filter-out %.h,$^)

# Prometheus's checker of rules, out of Debian's package, which is not installed. Where it cannot
# be had the file is empty, and the specs that want it are skipped.
build/promtool:
	@mkdir -p $(@D)/promtool.d && cd $(@D)/promtool.d && (timeout 120 apt-get -qq download prometheus && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool) 2>/dev/null; \
	  mv -f usr/bin/promtool ../promtool 2>/dev/null || : > ../promtool; rm -rf ../promtool.d

.PHONY: tests
tests: all $(O)/nst.so $(O)/run $(O)/proxy $(O)/meddle.so build/promtool

# A run of the suite; $(1): environment, $(2): interpreter. Specs that call
# make must not see this one's flags.
SPECS = env -u MAKEFLAGS -u MFLAGS $(1) NIGHTSHIFT_BUILD="$(O)" O="$(O)" $(2) \
        "$$(command -v busted)" -o spec/support/ci.lua $(ARGS)

#: make test        run all specs, or some: ARGS=spec/core/push_spec.lua
# ARGS=spec/core/push_spec.lua or ARGS='--filter "gives a job" spec'
.PHONY: test
test: deps
	@$(PARALLEL) tests
	@$(if $(ARGS),,sh spec/support/shards.sh "$(O)") $(call SPECS,LUA=$(LUA),$(LUA))

#: make test-web    the pages of `nightshift web` in headless Chromium
# Debian's chromium is large, so other targets do not ask for it. axe-core finds what screen readers
# and weak eyes miss; its file is empty where the npm registry cannot be had, and its spec is skipped.
AXE := axe-core@4.14.1
build/axe.js:
	@mkdir -p $(@D)/axe.d && cd $(@D)/axe.d && (timeout 120 npm pack --silent $(AXE) && \
	  tar -xzf axe-core-*.tgz package/axe.min.js) >/dev/null 2>&1; \
	  mv -f package/axe.min.js ../axe.js 2>/dev/null || : > ../axe.js; rm -rf ../axe.d

BROWSER = $(call SPECS,NIGHTSHIFT_BROWSER=1 $(1) LUA=$(LUA),$(LUA))
.PHONY: test-web screenshots
test-web: ARGS ?= spec/web/browser_spec.lua
test-web: deps
	@sh .ci/deps web
	@$(PARALLEL) tests build/axe.js
	@$(call BROWSER)

#: make screenshots  draws doc/pictures/*.png: pages of a private server, and top
screenshots: ARGS = --filter "are drawn" spec/web/browser_spec.lua
screenshots: deps
	@sh .ci/deps web
	@$(PARALLEL) tests
	@$(call BROWSER,NIGHTSHIFT_PICTURES=doc/pictures)

#: make test-asan   the same under AddressSanitizer and UBSan
# The same under AddressSanitizer and UBSan. Specs that build know by SAN.
# Without its hook on thread-local variables: that takes the module's, made
# late, for pointers and crashes the search for leaks (gcc 12, glibc 2.36).
SANITIZERS := address,undefined
ASAN := detect_stack_use_after_return=1:intercept_tls_get_addr=0
REPORT = log_path=$(CURDIR)/$(O)/report
.PHONY: test-asan asan
test-asan asan: deps
	@$(PARALLEL) O=build/asan SAN=$(SANITIZERS) tests
	@$(MAKE) --no-print-directory O=build/asan asan-run

.PHONY: asan-run
asan-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/run)

#: make test-oom    memory that runs out at every allocation of the module
# Memory that runs out at every single allocation of every function of the
# module, under AddressSanitizer.
.PHONY: test-oom oom-run
test-oom: deps
	@$(PARALLEL) O=build/asan SAN=$(SANITIZERS) tests build/asan/heap
	@$(MAKE) --no-print-directory O=build/asan oom-run

oom-run: ARGS ?= spec/oom/sweep.lua
oom-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/heap)

#: make test-gc     specs of base, core and binding while the collector runs all the time
# A full collection at every STRIDEth allocation inside the module's functions,
# and at every STRIDEth way in or out. Specs that let other processes do the work
# have nothing to gain. (`make test-oom` collects at every single
# allocation once.)
STRIDE ?= 97
GC_SPECS := $(wildcard spec/lua/*_spec.lua) spec/shared_spec.lua \
  $(patsubst %,spec/core/%_spec.lua,claim cut names push schema \
  sql_push wake)
.PHONY: test-gc gc-run
test-gc: deps
	@$(PARALLEL) O=build/asan SAN=$(SANITIZERS) tests build/asan/heap
	@$(MAKE) --no-print-directory O=build/asan gc-run

gc-run: ARGS ?= $(GC_SPECS)
gc-run:
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) \
	  NIGHTSHIFT_COLLECT=$(STRIDE) \
	  ASAN_OPTIONS=$(ASAN):abort_on_error=1 \
	  UBSAN_OPTIONS=print_stacktrace=1,$(O)/heap)

#: make test-tsan   the host's specs under ThreadSanitizer
# The host's specs under ThreadSanitizer. A report does not stop the process that made it;
# any that is left in the end is a failure. No suppressions are needed.
.PHONY: test-tsan tsan-run
test-tsan: deps
	@$(PARALLEL) O=build/tsan SAN=thread tests
	@$(MAKE) --no-print-directory O=build/tsan tsan-run

tsan-run: ARGS ?= spec/host
tsan-run:
	@rm -f $(O)/report.*
	@$(call SPECS,LUA="$(CURDIR)/$(O)/run" NIGHTSHIFT_PATIENCE=5 SAN=thread \
	  TSAN_OPTIONS="log_path=$(CURDIR)/$(O)/report second_deadlock_stack=1",$(O)/run)
	@! cat $(O)/report.* 2>/dev/null

#: make test-comma  all specs with a decimal comma in every process
# The suite in processes that all have a locale with a decimal comma, made here.
COMMA := LC_NUMERIC=de_DE.UTF-8 LOCPATH="$(CURDIR)/$(O)/locale" MEDDLE_LOCALE=1 LD_PRELOAD="$(CURDIR)/$(O)/meddle.so"
$(O)/locale/de_DE.UTF-8: .ci/deps
	@mkdir -p $(@D)
	$(Q)localedef --no-archive -i de_DE -f UTF-8 $@ && touch $@

.PHONY: test-comma
test-comma: deps
	@$(PARALLEL) tests $(O)/locale/de_DE.UTF-8
	@$(if $(ARGS),,sh spec/support/shards.sh "$(O)") $(call SPECS,$(COMMA) LUA=$(LUA),$(LUA))

#: make test-hostile    all specs on a server whose every default is odd
# Names of databases, character sets, collations, modes, accounts, what sessions begin
# with: spec/support/db.lua says how.
.PHONY: test-hostile
test-hostile: deps
	@$(PARALLEL) tests
	@$(if $(ARGS),,sh spec/support/shards.sh "$(O)") $(call SPECS,NIGHTSHIFT_HOSTILE=1 LUA=$(LUA),$(LUA))

#: make test-valgrind   specs of base, core and binding under valgrind
# valgrind over what runs in this process: base, core, the binding.
.PHONY: test-valgrind valgrind
test-valgrind valgrind: ARGS ?= spec/core spec/lua
test-valgrind valgrind: deps
	@$(PARALLEL) tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_PATIENCE=20,valgrind -q \
	  --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
	  --child-silent-after-fork=yes $(O)/run)

#: make test-cut-all    connections cut at every byte of every verb
# Connections cut at every single byte of every verb; some minutes.
.PHONY: test-cut-all
test-cut-all: ARGS = --filter "at any byte" spec/core/cut_spec.lua
test-cut-all: deps
	@$(PARALLEL) tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_CUT=all,$(LUA))

# ---- runs that break things for SECONDS and look at what is left; random inputs

#: make torture     break everything for SECONDS=120, then audit; SEED=n
# Breaks everything for SECONDS, then audits what is left; see
# spec/torture/run.lua. make torture SECONDS=3600 SEED=7 HOSTS=4 WORKERS=16
# FAULTS="worker server" takes only some of the faults.
SECONDS ?= 120
HARNESS = O="$(O)" NIGHTSHIFT_BUILD="$(O)" LUA=$(LUA) LUA_PATH="./?.lua;./lua/?.lua;./lua/?/init.lua;;" \
          LUA_CPATH="$(abspath $(O))/?.so;;" $(LUA)
.PHONY: torture
torture: deps
	@$(PARALLEL) tests
	@$(HARNESS) spec/torture/run.lua "$(SECONDS)" "$(SEED)" "$(FAULTS)" "$(HOSTS)" "$(WORKERS)"

#: make torture-asan    the same under AddressSanitizer and UBSan
# The same under AddressSanitizer and UBSan, with the host's counts checked after each
# event. What any process reports is a failure; nothing is suppressed.
.PHONY: torture-asan torture-asan-run
torture-asan: deps
	@$(PARALLEL) O=build/asan SAN=$(SANITIZERS) tests
	@$(MAKE) --no-print-directory O=build/asan torture-asan-run

torture-asan-run: LUA = $(CURDIR)/$(O)/run
torture-asan-run:
	@rm -f $(O)/report.*
	@NIGHTSHIFT_PATIENCE=5 SAN=$(SANITIZERS) ASAN_OPTIONS=$(ASAN):abort_on_error=1:$(REPORT) \
	  UBSAN_OPTIONS=print_stacktrace=1:$(REPORT) \
	  $(HARNESS) spec/torture/run.lua "$(SECONDS)" "$(SEED)" "$(FAULTS)" "$(HOSTS)" "$(WORKERS)"; \
	  status=$$?; ! cat $(O)/report.* 2>/dev/null && exit $$status

#: make test-failover   ten promotions of a replica under load, audited; ROUNDS=10
# The primary is killed and its replica promoted, with a host and a pusher at work, as
# doc/failover.md has it. The suite does so twice.
.PHONY: test-failover
test-failover: deps
	@NIGHTSHIFT_ROUNDS="$(or $(ROUNDS),10)" $(MAKE) --no-print-directory test \
	  ARGS='--filter "a list of servers" --filter "a promotion" spec/core/servers_spec.lua'

#: make test-galera   a Galera cluster of three nodes, killed and cut off under load; ROUNDS=5
# A node that joins gets its data by a script of Debian's mariadb-server. That package is not
# installed, for it would start a server; its scripts go into the build folder. Rsync that
# root starts would write as another user.
SST := $(O)/galera/usr/bin
$(SST)/wsrep_sst_rsync:
	@mkdir -p $(O)/galera && cd $(O)/galera && apt-get -qq download mariadb-server && \
	  dpkg-deb --fsys-tarfile mariadb-server_*.deb | tar -x --wildcards './usr/bin/wsrep_sst_*' && \
	  rm -f mariadb-server_*.deb && sed -i 's/^use chroot = no/&\nuid = '"$$(id -u)"'\ngid = '"$$(id -g)/" usr/bin/wsrep_sst_rsync

.PHONY: test-galera
test-galera: ARGS ?= spec/galera_spec.lua
test-galera: deps
	@sh .ci/deps galera
	@$(PARALLEL) tests $(SST)/wsrep_sst_rsync
	@$(call SPECS,NIGHTSHIFT_GALERA="$(abspath $(SST))" NIGHTSHIFT_ROUNDS="$(or $(ROUNDS),5)" LUA=$(LUA),$(LUA))

#: make test-dags   random graphs of jobs under kills for SECONDS; SEED=n
# Random graphs of jobs on two hosts, one after the other for SECONDS, while
# everything is killed; see spec/tree/dag_spec.lua. SEED=n begins with that one.
.PHONY: test-dags
test-dags: ARGS = --filter "time and again" spec/tree/dag_spec.lua
test-dags: deps
	@$(PARALLEL) tests
	@$(call SPECS,LUA=$(LUA) DAG_SECONDS="$(SECONDS)" SEED="$(SEED)",$(LUA))

#: make test-million  a million jobs: what claims read stays small
# A million jobs through hosts, with the size of what claims read; in `make test` there
# are fewer of them.
.PHONY: test-million
test-million: ARGS = --filter "stay small" spec/core/scale_spec.lua
test-million: deps
	@$(PARALLEL) tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_MANY=1000000,$(LUA))

# Every target of spec/fuzz for an equal share of SECONDS. The seeds are in
# spec/fuzz/corpus.tar, a folder for each target; an input that breaks something
# stays in build/fuzz.
FUZZ := ipc url duration json options
FUZZ_WRAP := ns_open ns_close ns_execute ns_push_jobs ns_settle ns_take_ids ns_signal ns_reprioritise \
             ns_forget_done ns_in_transaction ns_act_as
FUZZ_FLAGS := CC=clang O=build/fuzz SAN=fuzzer-no-link,address,undefined

#: make fuzz        SECONDS=60: frames, URLs, durations, JSON, options, an equal share each
.PHONY: fuzz
fuzz: deps
	@$(PARALLEL) $(FUZZ_FLAGS) fuzzers
	@O=build/fuzz sh spec/fuzz/run.sh $(SECONDS) $(FUZZ)

#: make fuzz-pack   adds what the last `make fuzz` has found to the seeds
.PHONY: fuzz-pack
fuzz-pack: deps
	@$(PARALLEL) $(FUZZ_FLAGS) fuzzers
	@O=build/fuzz sh spec/fuzz/run.sh pack $(FUZZ)

.PHONY: fuzzers
fuzzers: $(FUZZ:%=$(O)/fuzz-%)

FUZZ_LINK = $(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) -UNDEBUG $(LDFLAGS) -fsanitize=fuzzer

$(O)/fuzz-json $(O)/fuzz-options: $(O)/fuzz-%: spec/fuzz/lua.c $(LUAC_O) \
                                     $(PRIV_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) $(LUA_CFLAGS) -DTARGET='"$*"' $(FUZZ_WRAP:%=-Wl,--wrap=%) \
	  -o $@ $(filter %.c,$^) $(LUAC_O) $(PRIV_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS) $(LUA_LIBS) -lm

$(O)/fuzz-%: spec/fuzz/parsers.c $(O)/host/ipc/frame.o $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) -DTARGET='"$*"' -o $@ $< $(O)/host/ipc/frame.o $(LIBRARY) $(MARIADB_LIBS)
