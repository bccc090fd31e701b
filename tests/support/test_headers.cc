// Nothing: its target compiles the headers that tests share (tests/CMakeLists.txt).
