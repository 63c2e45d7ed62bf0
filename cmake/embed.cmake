# agoge_embed(target file symbol): the bytes of a file as `const char symbol[]` and `const size_t symbol_bytes`, made again when the file
# changes. Without any other program: CMake reads the file itself.
function(agoge_embed target file symbol)
  set(out ${CMAKE_BINARY_DIR}/generated/${symbol}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${CMAKE_SOURCE_DIR}/${file} -DOUT=${out} -DSYMBOL=${symbol} -P ${CMAKE_SOURCE_DIR}/cmake/write_embedded.cmake
    DEPENDS ${file} cmake/write_embedded.cmake VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
