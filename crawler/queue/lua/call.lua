-- Calls the operation that ARGV[1] names.

local operation = operations[ARGV[1]]
if not operation then return redis.error_reply('no such operation: ' .. tostring(ARGV[1])) end
return operation(unpack(ARGV, 2, math.min(#ARGV, MOST_ARGUMENTS + 1)))
