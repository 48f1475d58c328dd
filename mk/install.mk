# Installs program, module, library, pages and service; and packs them for Debian.

# Program, module and Lua files, and for C programs the library with its headers and what
# pkg-config reads; the SQL is inside. The program finds the Lua
# files by its own path: ../share/lua/5.4.
#: make install     PREFIX=/usr/local; also BINDIR, LUADIR, LIBDIR, INCDIR, CLIBDIR, MANDIR, UNITDIR,
#:                  DESTDIR, and for completions BASHDIR, ZSHDIR, FISHDIR
PUBLIC := nightshift.h nightshift_types.h
VERSION = $(call once,VERSION,sed -n 's/^.define NS_VERSION "\(.*\)"/\1/p' src/include/nightshift.h)
PC_LINES = 'Name: nightshift' 'Description: Durable background jobs on MariaDB' \
  'Version: $(VERSION)' 'Requires: libmariadb' \
  'Cflags: -I$(INCDIR)' 'Libs: -L$(CLIBDIR) -lnightshift -pthread'
.PHONY: install uninstall man
install: all man
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(LIBDIR)/nightshift"
	install -m 755 $(PROGRAM) "$(DESTDIR)$(BINDIR)/nightshift"
	install -m 755 $(MODULE) "$(DESTDIR)$(LIBDIR)/nightshift/core.so"
	test -z "$(SCREEN)" || install -D -m 755 $(SCREEN) "$(DESTDIR)$(LIBDIR)/nightshift/host/screen.so"
	test -z "$(HTTP)" || install -D -m 755 $(HTTP) "$(DESTDIR)$(LIBDIR)/nightshift/host/http.so"
	install -d "$(DESTDIR)$(INCDIR)" "$(DESTDIR)$(CLIBDIR)/pkgconfig"
	install -m 644 $(PUBLIC:%=src/include/%) "$(DESTDIR)$(INCDIR)"
	install -m 644 $(LIBRARY) "$(DESTDIR)$(CLIBDIR)"
	printf '%s\n' $(PC_LINES) > "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"
	cd lua && for folder in $$(find nightshift -type d); do install -d "$(DESTDIR)$(LUADIR)/$$folder" && \
	  install -m 644 "$$folder"/*.lua "$(DESTDIR)$(LUADIR)/$$folder" || exit; done
	install -d "$(DESTDIR)$(MANDIR)/man1"
	! test -e $(O)/man/nightshift.1 || install -m 644 $(O)/man/*.1 "$(DESTDIR)$(MANDIR)/man1"
	test -z "$(UNITDIR)" || { install -d "$(DESTDIR)$(UNITDIR)" && sed 's|@BINDIR@|$(BINDIR)|' mk/nightshift@.service \
	  > "$(DESTDIR)$(UNITDIR)/nightshift@.service"; }
	for pair in "nightshift,$(BASHDIR)" "_nightshift,$(ZSHDIR)" "nightshift.fish,$(FISHDIR)"; do \
	  ! test -e "$(O)/completion/$${pair%%,*}" || \
	  install -D -m 644 "$(O)/completion/$${pair%%,*}" "$(DESTDIR)$${pair#*,}/$${pair%%,*}"; done

#: make man         manual pages and completions, from the parser of the command line, into build
# The parser is argparse's; without it there are none.
GENERATE = LUA_PATH="lua/?.lua;lua/?/init.lua;;" LUA_CPATH="$(O)/?.so;;" $(LUA) doc/generate.lua
man: all
	@mkdir -p $(O)/man $(O)/completion && rm -f $(O)/man/* $(O)/completion/*
	@! $(LUA) -e 'require "argparse"' 2>/dev/null || \
	  { $(GENERATE) man $(O)/man $(VERSION) && $(GENERATE) completion $(O)/completion; }

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/nightshift"
	rm -rf "$(DESTDIR)$(LIBDIR)/nightshift" "$(DESTDIR)$(LUADIR)/nightshift"
	rm -f "$(DESTDIR)$(MANDIR)/man1/nightshift.1" "$(DESTDIR)$(MANDIR)/man1"/nightshift-*.1
	rm -f "$(DESTDIR)$(UNITDIR)/nightshift@.service"
	rm -f "$(DESTDIR)$(BASHDIR)/nightshift" "$(DESTDIR)$(ZSHDIR)/_nightshift" "$(DESTDIR)$(FISHDIR)/nightshift.fish"
	rm -f $(PUBLIC:%="$(DESTDIR)$(INCDIR)/%") "$(DESTDIR)$(CLIBDIR)/libnightshift.a" \
	  "$(DESTDIR)$(CLIBDIR)/pkgconfig/nightshift.pc"

# ---------------------------------------------------------- a Debian package

# One binary package, made with dpkg-dev: program, module, C library, pages, service. What it
# depends on is read from what it links. Running hosts are restarted by an upgrade, since scripts
# that are read again would mix the old program with the new Lua files.
DEB      := $(O)/deb
ARCH      = $(call once,ARCH,dpkg --print-architecture)
MULTIARCH = $(call once,MULTIARCH,dpkg-architecture -qDEB_HOST_MULTIARCH)
DEB_FILE  = $(O)/nightshift_$(VERSION)-1_$(ARCH).deb
DEB_TREE  = DESTDIR=$(abspath $(DEB))/tree PREFIX=/usr LIBDIR=/usr/lib/$(MULTIARCH)/lua/5.4 \
  CLIBDIR=/usr/lib/$(MULTIARCH) ZSHDIR=/usr/share/zsh/vendor-completions VERSION=$(VERSION)
DEB_DOC   = $(DEB)/tree/usr/share/doc/nightshift
DEB_ELF   = tree/usr/bin/nightshift $(addprefix tree/usr/lib/$(MULTIARCH)/lua/5.4/nightshift/,core.so \
  $(if $(HTTP),host/http.so))
# What it links is recommended: only `top` needs it.
DEB_SCREEN = $(if $(SCREEN),tree/usr/lib/$(MULTIARCH)/lua/5.4/nightshift/host/screen.so)
define DEB_CONTROL
Package: nightshift
Version: $(VERSION)-1
Section: database
Priority: optional
Architecture: $(ARCH)
Maintainer: the Nightshift authors <root@localhost>
Depends: @DEPENDS@, lua-argparse, passwd
Recommends: lua5.4, lua-penlight, tzdata, libncursesw6
Suggests: mariadb-server, mariadb-server-core, mariadb-client-core
Description: durable background jobs for Lua on MariaDB
 A C library pushes jobs into MariaDB tables and claims them. A host program runs
 handlers that are Lua functions, in worker processes, and each job ends once.
endef
define DEB_POSTINST
#!/bin/sh
set -e
[ "$$1" = configure ] || exit 0
getent passwd nightshift >/dev/null || useradd --system --user-group --no-create-home \
  --home-dir /var/lib/nightshift --shell /usr/sbin/nologin nightshift
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
[ -z "$$2" ] || systemctl try-restart 'nightshift@*.service'
endef
define DEB_PRERM
#!/bin/sh
set -e
[ "$$1" = remove ] && [ -d /run/systemd/system ] || exit 0
systemctl stop 'nightshift@*.service'
endef
define DEB_POSTRM
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
[ "$$1" != purge ] || rm -rf /etc/nightshift /var/lib/nightshift
endef

#: make deb         a Debian package of it, into build/; VERSION=0.1.0
.PHONY: deb
deb: export CONTROL = $(DEB_CONTROL)
deb: export POSTINST = $(DEB_POSTINST)
deb: export PRERM = $(DEB_PRERM)
deb: export POSTRM = $(DEB_POSTRM)
deb: all
	@command -v dpkg-shlibdeps >/dev/null || { echo "deb: apt-get install dpkg-dev" >&2; exit 1; }
	@rm -rf $(DEB) && mkdir -p $(DEB)/debian $(DEB)/tree/DEBIAN $(DEB_DOC)
	@$(MAKE) --no-print-directory -s install $(DEB_TREE)
	@install -d -m 755 $(DEB)/tree/etc/nightshift
	@cd $(DEB) && strip --strip-unneeded $(DEB_ELF) $(DEB_SCREEN) && strip --strip-debug tree/usr/lib/$(MULTIARCH)/*.a && \
	  printf 'Source: nightshift\n\nPackage: nightshift\nArchitecture: any\n' > debian/control && \
	  dpkg-shlibdeps -O $(DEB_ELF:%=-e%) | sed 's/^shlibs:Depends=//' > depends
	@gzip -9n $(DEB)/tree/usr/share/man/man1/*.1
	@cp LICENSE $(DEB_DOC)/copyright && gzip -9nc CHANGELOG.md > $(DEB_DOC)/changelog.gz
	@printf '%s\n' "$$CONTROL" | sed "s|@DEPENDS@|$$(cat $(DEB)/depends)|" > $(DEB)/tree/DEBIAN/control
	@cd $(DEB)/tree/DEBIAN && printf '%s\n' "$$POSTINST" > postinst && printf '%s\n' "$$PRERM" > prerm && \
	  printf '%s\n' "$$POSTRM" > postrm && chmod 755 postinst prerm postrm
	@cd $(DEB)/tree && find usr -type f -exec md5sum {} + | sort -k 2 > DEBIAN/md5sums
	@dpkg-deb --root-owner-group --build $(DEB)/tree $(DEB_FILE)
