-- Orders of the operator, and what is counted.

-- '1' if the tables' sites are given up -> how many keys went. The last step of emptying a queue, in one with the note
-- that it was emptied on purpose, so that no coordinator counts its sites as lost.
function operations.empty(gives_up)
  local removed = call('UNLINK', count, base .. 'tables')
  if gives_up == '1' then call('HSET', base .. 'tables', 'reset', now()) end
  return removed
end

local function resumed(site, record)
  call('HDEL', base .. 'why', site)
  if record.agent then call('SREM', base .. 'stop:' .. record.agent, site) end
  if class_of(record) ~= 'leased' and (record.state == 'w' or record.state == 's') then
    call('RPUSH', again('site'), site)
  end
end

-- site, order (pause, resume, block), reason, record (JSON) or '' -> the state's name before, or false for an unknown
-- site. The holder, if there is one, is told with its next renewal. Of a blocked site nothing is left to pause.
function operations.order(site, order, reason, report)
  local record = read(site)
  if not record then return false end
  local before = class_of(record)
  if order == 'pause' and record.state == 'b' then return before end
  tell(report)
  alter(site, record, function(r)
    if order == 'pause' then r.paused = true end
    if order == 'block' then r.state, r.paused = 'b', false end
    if order == 'resume' then
      r.paused = false
      if r.state == 'b' or r.state == 'a' then
        r.state = unfinished(site)
        if r.state == 'w' then undo(r) end
        tell_opened(site, r.progress, 'pending')
        enrol(site, now())
      end
    end
  end)
  if order == 'resume' then free_of_suspicion(site) else part_namesakes(site) end
  if order == 'resume' then
    resumed(site, record)
    return before
  end
  if order == 'block' then
    call('HDEL', base .. 'owed', site)
    call('ZREM', base .. 'wake:site', site)
    clear_suspicion(site)
  end
  -- Of an alias it says which site it stands for.
  if reason ~= '' and record.state ~= 'a' then call('HSET', base .. 'why', site, reason) end
  if record.agent then
    call('SADD', base .. 'stop:' .. record.agent, site)
  elseif order == 'block' then
    call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site)
  end
  return before
end

-- site, pages (0: no limit; '': the crawl's own) from its next lease on, record (JSON) or ''
-- -> 1, or 0 for an unknown site.
function operations.budget(site, pages, report)
  if not read(site) then return 0 end
  tell(report)
  if pages == '' then
    call('HDEL', base .. 'budget', site)
  else
    call('HSET', base .. 'budget', site, pages)
  end
  return 1
end

-- site, record (JSON) or '', then the works whose due times go too -> 1 forgotten, 0 unknown, -1 held by an agent
-- (block it first).
function operations.forget(site, report, ...)
  local record = read(site)
  if not record then return 0 end
  if record.agent then return -1 end
  tell(report)
  clear_suspicion(site)
  part_namesakes(site)
  unpark(host_of(site))
  if record.address ~= '-' then unpark(record.address) end
  add(class_of(record), -1)
  add('added', -1)
  if call('HEXISTS', base .. 'tables', 'added') == 1 then call('HINCRBY', base .. 'tables', 'added', -1) end
  call('SREM', base .. 'suspended', site)
  call('SREM', base .. 'parked', site)
  call('HDEL', bucket(site), site)
  for _, kind in ipairs({ 'checkpoint:', 'paths:', 'visit:', 'offered:' }) do call('UNLINK', base .. kind .. site) end
  call('ZREM', base .. 'undecided', site)
  call('SREM', base .. 'rootless', site)
  call('HDEL', base .. 'reopen', site)
  call('HDEL', base .. 'why', site)
  call('HDEL', base .. 'budget', site)
  call('HDEL', base .. 'permits', site)
  call('HDEL', base .. 'owed', site)
  for _, work in ipairs({ ... }) do call('ZREM', base .. 'wake:' .. work, site) end
  return 1
end

-- -> the counts and list lengths that tell whether anything is left; false for a count that is no whole number.
function operations.depth()
  local fields = { 'waiting', 'suspended', 'leased', 'later', 'paused', 'finished', 'alias', 'blocked', 'added' }
  local answer = {}
  for place, value in ipairs(call('HMGET', count, unpack(fields))) do
    answer[place] = tonumber(string.match(value or '0', '^-?%d+$')) or false
  end
  local many = #fields
  answer[many + 1] = call('EXISTS', base .. 'results') == 1 and call('XLEN', base .. 'results') or 0
  answer[many + 2] = sessions()
  answer[many + 3] = call('EXISTS', base .. 'coordinated')
  return answer
end
