# Builds the checks of the host's pure parts; included after the Makefile, so
# that flags and sanitizers are the same: make -f Makefile -f spec/host/units.mk
$(O)/host-units: spec/host/units.c $(filter-out $(O)/host/main.o,$(HOST_O)) $(LUAC_O) $(PRIV_O) $(LIBRARY)
	$(CC) $(CPPFLAGS) $(ALL_SEE) $(LUA_CFLAGS) $(NS_CFLAGS) -UNDEBUG $(LDFLAGS) -o $@ $(filter-out %.h,$^) $(MARIADB_LIBS) $(JANSSON_LIBS) $(UV_LIBS) $(LUA_LIBS) -lm
