# Where the products go.

# Program, module and Lua files; the SQL is inside. The program finds the Lua
# files by its own path: ../share/lua/5.4.
#: make install     PREFIX=/usr/local; also BINDIR, LUADIR, LIBDIR, DESTDIR
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
