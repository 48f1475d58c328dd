# Where the products go.

# Program, module and Lua files, and for C programs the library with its headers and what
# pkg-config reads; the SQL is inside. The program finds the Lua
# files by its own path: ../share/lua/5.4.
#: make install     PREFIX=/usr/local; also BINDIR, LUADIR, LIBDIR, INCDIR, CLIBDIR, DESTDIR
PUBLIC := nightshift.h nightshift_types.h
VERSION = $(shell sed -n 's/^.define NS_VERSION "\(.*\)"/\1/p' src/include/nightshift.h)
PC_LINES = 'Name: nightshift' 'Description: Durable background jobs on MariaDB' \
  'Version: $(VERSION)' 'Requires: libmariadb' \
  'Cflags: -I$(INCDIR)' 'Libs: -L$(CLIBDIR) -lnightshift -pthread'
.PHONY: install uninstall
install: all
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)/nightshift"
	install -m 755 $(PROGRAM) "$(DESTDIR)$(BINDIR)/nightshift"
	install -m 755 $(MODULE) "$(DESTDIR)$(LIBDIR)/nightshift/core.so"
	install -d "$(DESTDIR)$(INCDIR)" "$(DESTDIR)$(CLIBDIR)/pkgconfig"
	install -m 644 $(PUBLIC:%=src/include/%) "$(DESTDIR)$(INCDIR)"
	install -m 644 $(LIBRARY) "$(DESTDIR)$(CLIBDIR)"
	printf '%s\n' $(PC_LINES) > "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"
	cd lua && find nightshift -name '*.lua' \
	  -exec install -D -m 644 {} "$(DESTDIR)$(LUADIR)/{}" \;

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/nightshift"
	rm -rf "$(DESTDIR)$(LIBDIR)/nightshift" "$(DESTDIR)$(LUADIR)/nightshift"
	rm -f $(PUBLIC:%="$(DESTDIR)$(INCDIR)/%") "$(DESTDIR)$(CLIBDIR)/libnightshift.a" \
	  "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"
