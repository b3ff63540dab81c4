# carpool_folder(NAME DEPS ... LIBS ... [TEST_LIBS ...]): one static library per folder of src/, linking only
# the folders of lower rank that the layer table of ARCHITECTURE.md allows, and one test program for the
# folder's *_test.cc files. tools/check_layers.py checks the same table on the #include lines.
function(carpool_folder name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;TEST_LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|_test_util|/main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM ARG_DEPS PREPEND carpool_)
  list(TRANSFORM ARG_TEST_LIBS PREPEND carpool_)
  add_library(carpool_${name} STATIC ${sources})
  target_include_directories(carpool_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(carpool_${name} PUBLIC ${ARG_DEPS} ${ARG_LIBS})
  if(CARPOOL_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE carpool_${name} ${ARG_TEST_LIBS} carpool_source_dir GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)  # what is tested is compiled as it ships
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600 LABELS ${name})
  endif()
endfunction()
