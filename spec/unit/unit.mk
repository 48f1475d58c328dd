# Builds the checks in C: of the host's pure parts, and the crash sweep of the shared dict.
# Included after the Makefile, so that flags and sanitizers are the same:
# make -f Makefile -f spec/unit/unit.mk
$(O)/host-units: spec/unit/host.c $(filter-out $(O)/host/main.o,$(HOST_O)) $(LUAC_O) $(PRIV_O) $(LIBRARY)
	$(CC) $(CPPFLAGS) $(ALL_SEE) $(LUA_CFLAGS) $(NS_CFLAGS) -UNDEBUG $(LDFLAGS) -o $@ $(filter-out %.h,$^) $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) $(LUA_LIBS) -lm

$(O)/shared-units: spec/unit/shared.c src/base/shared/dict.c $(filter-out $(O)/base/shared/dict.o,$(BASE_O))
	$(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) -DNS_CRASH -UNDEBUG $(LDFLAGS) -o $@ $(filter-out %.h,$^)
