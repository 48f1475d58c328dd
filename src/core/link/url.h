/*
** Database URLs: mysql:// or mariadb://user:password@host:port/database?k=v
**
** Parsing is a pure function of the bytes of the URL. Parts may be empty or percent-encoded; an
** IPv6 host stands in [brackets]. The keys of the query are fields of ns_config, each at most
** once: unix_socket, tls, ca, cert, key, connect_timeout, read_timeout, max_payload, file,
** group. No message of a failed parse shows any part that could belong to the password.
*/
#ifndef NS_LINK_URL_H
#define NS_LINK_URL_H

#include "nightshift_host.h"

typedef struct ns_url {
  char *text; /* owned: the decoded parts below live in it */
  /* NULL: absent or empty; only 'password' may be "" */
  const char *host, *user, *password, *database, *socket;
  const char *file, *group, *tls, *ca, *cert, *key;
  unsigned port;           /* 0: absent */
  int64_t connect_timeout; /* µs; 0: absent */
  int64_t read_timeout;    /* likewise */
  int64_t max_payload;     /* bytes; 0: absent */
} ns_url;

#define NS_URL_INIT ((ns_url){0})

/* Fills '*out'; on failure '*out' is empty. Errors: INVALID, NOMEM. */
ns_status ns_url_parse(const char *url, ns_url *out, ns_err *err);

/* Frees; the URL is empty afterwards. Twice is harmless. */
void ns_url_free(ns_url *u);

/* Sets the absent fields of 'cfg'; they borrow from 'u'. */
void ns_url_fill(const ns_url *u, ns_config *cfg);

/* Adds 'text' percent-encoded; '/' stays as it is. */
void ns_url_encode(ns_buf *out, const char *text);

#endif
