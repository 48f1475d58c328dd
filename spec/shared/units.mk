# Builds the crash sweep of the shared dict; included after the Makefile, so
# that flags and sanitizers are the same: make -f Makefile -f spec/shared/units.mk
$(O)/shared-units: spec/shared/units.c src/base/ns_dict.c $(filter-out $(O)/base/ns_dict.o,$(BASE_O))
	$(CC) $(CPPFLAGS) $(ALL_SEE) $(NS_CFLAGS) -DNS_CRASH -UNDEBUG $(LDFLAGS) -o $@ $(filter-out %.h,$^)
