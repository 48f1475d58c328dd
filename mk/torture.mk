# Runs that break things for SECONDS and look at what is left; random inputs.

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
test-million: ARGS = --filter "stay small" spec/designs/remedies_spec.lua
test-million: deps
	@$(PARALLEL) tests
	@$(call SPECS,LUA=$(LUA) NIGHTSHIFT_MANY=1000000,$(LUA))

# Every target of spec/fuzz for an equal share of SECONDS. The seeds are in
# spec/fuzz/corpus, an archive for each target; an input that breaks something
# stays in build/fuzz.
FUZZ := ipc url duration json options
FUZZ_WRAP := ns_open ns_close ns_execute ns_push_jobs ns_settle ns_take_ids ns_signal ns_reprioritise \
             ns_forget_done ns_in_transaction
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

FUZZ_LINK = $(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) $(LDFLAGS) -fsanitize=fuzzer

$(O)/fuzz-json $(O)/fuzz-options: $(O)/fuzz-%: spec/fuzz/lua.c spec/fuzz/fuzz.h $(LUAC_O) \
                                     $(PRIV_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) $(LUA_CFLAGS) -DTARGET='"$*"' $(FUZZ_WRAP:%=-Wl,--wrap=%) \
	  -o $@ $(filter %.c,$^) $(LUAC_O) $(PRIV_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS) $(LUA_LIBS) -lm

$(O)/fuzz-%: spec/fuzz/%.c spec/fuzz/fuzz.h $(O)/host/ipc/frame.o $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) -o $@ $< $(O)/host/ipc/frame.o $(LIBRARY) $(MARIADB_LIBS)
