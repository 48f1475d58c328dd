# What is measured.

$(O)/bench/floor: bench/floor/floor.c bench/floor/bench.h
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE $(MARIADB_CFLAGS) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(MARIADB_LIBS)

$(O)/bench/verbs: bench/floor/verbs.c bench/floor/bench.h $(LIBRARY)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) $(LDFLAGS) -o $@ $< $(LIBRARY) $(MARIADB_LIBS)

STRATEGIES := bench/designs/strategies.c bench/designs/bare.c bench/designs/ours.c
$(O)/bench/strategies: $(STRATEGIES) bench/floor/bench.h bench/designs/crew.h $(LIBRARY)
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
