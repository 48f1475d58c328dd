/*
** CRC32 (the one of zlib and the server: polynomial 0xEDB88320, reflected), four bits
** at a time: names are short.
*/
#include "db/kind.h"

int64_t ns_kind_of(ns_bytes name) {
  static const uint32_t table[16] = {
      0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
      0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
      0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < name.n; i++) {
    crc ^= (unsigned char)name.p[i];
    crc = table[crc & 15] ^ (crc >> 4);
    crc = table[crc & 15] ^ (crc >> 4);
  }
  return (int64_t)(crc ^ UINT32_MAX);
}
