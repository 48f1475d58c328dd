# Random inputs.

# Every target of spec/fuzz for an equal share of SECONDS. The seeds are in
# spec/fuzz/corpus, an archive for each target; an input that breaks something
# stays in build/fuzz.
FUZZ := ipc url duration json options
FUZZ_WRAP := ns_open ns_close ns_execute ns_push_jobs ns_settle ns_take_ids ns_signal ns_reprioritise \
             ns_forget_done ns_in_transaction ns_adopt $(addprefix ns_adopted_,at settle touch touch_many dead \
             dead_groups retry retry_all prune drain)
SECONDS ?= 60
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
	@O=build/fuzz sh spec/fuzz/pack.sh $(FUZZ)

.PHONY: fuzzers
fuzzers: $(FUZZ:%=$(O)/fuzz-%)

FUZZ_LINK = $(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) $(LDFLAGS) -fsanitize=fuzzer

$(O)/fuzz-json $(O)/fuzz-options: $(O)/fuzz-%: spec/fuzz/lua.c spec/fuzz/adopted.c spec/fuzz/fuzz.h \
                                     $(LUAC_O) $(PRIV_O) $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) $(LUA_CFLAGS) -DSCRIPT='"spec/fuzz/$*.lua"' $(FUZZ_WRAP:%=-Wl,--wrap=%) \
	  -o $@ $(filter %.c,$^) $(LUAC_O) $(PRIV_O) $(LIBRARY) $(MARIADB_LIBS) $(JANSSON_LIBS) $(LUA_LIBS) -lm

$(O)/fuzz-%: spec/fuzz/%.c spec/fuzz/fuzz.h $(O)/host/ipc/frame.o $(LIBRARY)
	$(SAY) LINK $@
	$(Q)$(FUZZ_LINK) -o $@ $< $(O)/host/ipc/frame.o $(LIBRARY) $(MARIADB_LIBS)
