-- What coordinators decide: finished sites to reopen, aliases; restoring a lost queue.

local function is_holder(lock, name, number)
  return call('GET', base .. lock) == name .. ' ' .. number
end

-- coordinator, number, then per site: name, how many of its offered entries hold nothing new -> 1. Of a site that is
-- not finished all go to its frontier. Error LOST where the lock is another's.
function operations.decide(coordinator, number)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  for i = 4, #ARGV, 2 do
    local site, taken = ARGV[i], ARGV[i + 1]
    local record = read(site)
    if is_unfinished(record) then
      hand_over(site, record, call('LLEN', base .. 'offered:' .. site))
    elseif record and record.state == 'f' then
      call('LTRIM', base .. 'offered:' .. site, taken, -1)
    else
      clear_offered(site, record)
    end
    note_decided(site, record)
  end
  return 1
end

-- coordinator, number, site, checkpoint ('' where nothing of it is to be loaded), entries of its offered paths that
-- were looked at, how often it had been noted that pages of it are to be loaded again, and what the tables lost of it
-- ('': nothing)
-- -> 1 opened, or there was nothing to open; 0: it is not finished, and will be opened when it is. Error LOST.
function operations.reopen(coordinator, number, site, checkpoint, taken, noted, owed)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  if is_unfinished(record) then
    hand_over(site, record, tonumber(taken))
    note_decided(site, record)
    return 0
  end
  -- What was noted since the tables were read is not in the checkpoint.
  if call('HGET', base .. 'reopen', site) == noted then call('HDEL', base .. 'reopen', site) end
  if not record or record.state ~= 'f' then
    clear_offered(site, record)
    call('HDEL', base .. 'reopen', site)
  elseif checkpoint == '' then
    call('LTRIM', base .. 'offered:' .. site, taken, -1)
  else
    call('UNLINK', base .. 'checkpoint:' .. site)
    call('RPUSH', base .. 'checkpoint:' .. site, checkpoint)
    alter(site, record, function(r) r.state = 's' end)
    tell_opened(site, record.progress, 'over_budget')
    note_owed(site, owed)
    hand_over(site, record, tonumber(taken))
    if not record.paused then call('RPUSH', again('site'), site) end
  end
  note_decided(site, record)
  return 1
end

-- coordinator, number, site, entries of its offered paths that are left out, its progress as it was read, progress from
-- now on, record (JSON; '': nothing new is left out) -> 1, or 0: it has changed, and is looked at again. Error LOST.
function operations.refuse(coordinator, number, site, taken, before, progress, report)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  if not record or record.state ~= 'f' or (record.progress or '') ~= before then return 0 end
  if report ~= '' then
    tell(report)
    alter(site, record, function(r) r.progress = progress end)
    if suspicion_of(site) then await_comparison(site) end -- its row forgets by that record whose pages it has
  end
  call('LTRIM', base .. 'offered:' .. site, taken, -1)
  note_decided(site, record)
  return 1
end

-- coordinator, number, then per site: name, the site that it was compared with, what is known by that (open, same, no),
-- the time by which it was looked at -> 1. `no` opens an alias again. Error LOST where the lock is another's.
function operations.judge(coordinator, number)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  for i = 4, #ARGV, 4 do
    local site, first, state, looked = unpack(ARGV, i, i + 3)
    local known, record = suspicion_of(site), read(site)
    if known and record and known.first == first and known.state ~= 'no' then
      end_wait(site, known)
      known.state = state
      note_suspicion(site, known)
      if state == 'no' and record.state == 'a' then open_alias(site, record) end
    end
    local since = tonumber(call('ZSCORE', base .. 'suspects', site) or 0)
    if since <= tonumber(looked) then call('ZREM', base .. 'suspects', site) end
  end
  return 1
end

-- coordinator, number, site, entries … -> 1. Paths that were found under the name of an alias. Error LOST.
function operations.hand_on(coordinator, number, site)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  for i = 5, #ARGV do
    if record then receive(site, record, ARGV[i], 0) end
  end
  return 1
end

-- coordinator, number, site, the site that it is under a second name, its progress as it was read, progress from now
-- on, record (JSON; '': its holder is to give it back, no more) -> 1 it is left out; 0 it is not: it was given as a
-- seed, is held, has changed, or the other is not crawled. Error LOST.
function operations.leave_out(coordinator, number, site, first, before, progress, report)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record, known = read(site), suspicion_of(site)
  if not record or not known or known.first ~= first or not may_be_alias_of(site, record) then return 0 end
  if record.agent and record.work == 'site' and report == '' then
    call('SADD', base .. 'suspend:' .. record.agent, site)
  end
  if record.agent or report == '' then return 0 end
  local other = read(first)
  if not is_unfinished(record) or (record.progress or '') ~= before or not is_crawled(other) then return 0 end
  tell(report)
  -- Some may have come since its frontier was read; what is given twice is fetched once.
  for _, paths in ipairs(call('LRANGE', base .. 'paths:' .. site, 0, -1)) do receive(first, other, paths, 0) end
  end_wait(site, known)
  note_suspicion(site, known)
  call('ZREM', base .. 'suspects', site)
  call('HSET', base .. 'why', site, first)
  turn_namesakes(site, first)
  alter(site, record, function(r) r.state, r.progress = 'a', progress end)
  return 1
end

-- sites … -> 1. Pages of them are to be loaded again; those that are not known are left out.
function operations.plan_reopening()
  for i = 2, #ARGV do
    local record = read(ARGV[i])
    if record then note_reopening(ARGV[i], record) end
  end
  return 1
end

-- per site: name, letter (w, s, f, a, b; a capital one is paused), address, progress (or ''), pages of its own (or ''),
-- why (or ''), '1' if a link led to it, what the tables lost of it (or '') -> how many were not known. For rebuilding a
-- lost queue; what is known stays as it is.
function operations.restore()
  local new = 0
  for i = 2, #ARGV, 8 do
    local site, letter, address, progress, pages, why, linked, owed = unpack(ARGV, i, i + 7)
    if not read(site) then
      new = new + 1
      local state = string.lower(letter)
      local record = { state = state, paused = letter ~= state, address = address, linked = linked == '1' }
      if progress ~= '' then record.progress = progress end
      write(site, record)
      add(class_of(record), 1)
      add('added', 1)
      if letter == 'w' then call('RPUSH', base .. 'fresh', site) end
      if letter == 's' then call('SADD', base .. 'suspended', site) end
      if pages ~= '' then call('HSET', base .. 'budget', site, pages) end
      if why ~= '' then call('HSET', base .. 'why', site, why) end
      note_owed(site, owed)
      if state == 'a' and why ~= '' then begin_suspicion(site, why) end
    end
  end
  return new
end

-- site, progress that its record has ('': none), checkpoint ('': the site begins with its root), progress from now on,
-- what the tables lost of it ('': nothing, or as it was) -> 1 the site continues from that checkpoint, a blocked one
-- stays blocked; 0: its record says something else, or an agent holds it. An agent whose session is over loses it here.
function operations.mend(site, before, checkpoint, progress, owed)
  local record, time = read(site), now()
  if record and record.agent and tonumber(call('ZSCORE', base .. 'agents', record.agent) or 0) <= time then
    take_from(record.agent, site, time)
    record = read(site)
  end
  if not record or record.agent or (record.progress or '') ~= before then return 0 end
  if record.state ~= 'b' then
    call('UNLINK', base .. 'checkpoint:' .. site)
    if checkpoint ~= '' then call('RPUSH', base .. 'checkpoint:' .. site, checkpoint) end
  end
  local was_over = record.state == 'f' or record.state == 'a'
  if record.state == 'a' then call('HDEL', base .. 'why', site) end
  alter(site, record, function(r)
    r.progress = progress ~= '' and progress or nil
    if r.state ~= 'b' and r.state ~= 'l' then r.state = unfinished(site) end
  end)
  if was_over then tell_opened(site, record.progress, 'pending') end
  note_owed(site, owed)
  if not record.paused and (record.state == 'w' or record.state == 's') then call('RPUSH', again('site'), site) end
  return 1
end

-- site, what `owed` has of it -> 1: it is owed no more; 0: it has something else by now.
function operations.settle(site, owed)
  if call('HGET', base .. 'owed', site) ~= owed then return 0 end
  return call('HDEL', base .. 'owed', site)
end

-- site, checkpoint -> 1. It takes the place of whatever checkpoint is there; the site itself follows by `restore`.
function operations.give_checkpoint(site, checkpoint)
  call('UNLINK', base .. 'checkpoint:' .. site)
  call('RPUSH', base .. 'checkpoint:' .. site, checkpoint)
  return 1
end
