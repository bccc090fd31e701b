// Memory that nobody may touch, told to the address sanitizer; nothing without it.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define BRIGADE_POISON(data, bytes) ASAN_POISON_MEMORY_REGION(data, bytes)
#define BRIGADE_UNPOISON(data, bytes) ASAN_UNPOISON_MEMORY_REGION(data, bytes)
#else
#define BRIGADE_POISON(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define BRIGADE_UNPOISON(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif
