-- What the holder of a lease publishes, and how a lease ends.

-- Records and their links, in turn, from this argument to that one.
local function tell_pages(first, last)
  for i = first, last, 2 do
    if ARGV[i + 1] == '' then
      tell(ARGV[i])
    else
      call('XADD', base .. 'results', '*', 'v', '1', 'r', ARGV[i], 'l', ARGV[i + 1])
    end
  end
end

-- agent, the number of its last call of `offer` that was answered, then per site: name, token, seq, delta (or ''), fold
-- ('1': the delta is the whole checkpoint), root (what the site has in common with an alias of it, one a line, or ''),
-- least pause between requests (ms), time before which the site must not be asked (ms; 0: none), its progress (''
-- leaves what is there), how many entries of paths the delta has taken in, '1' if its records send pages back to
-- loading, number of records, then per record JSON and links
-- -> per site OK, AGAIN (a resend), STALE or GAP, and behind the first two the site that it may be an alias of. Error
-- OLDER as `offer`: no page is published whose links the server has lost.
function operations.publish(agent, offers)
  if is_older(agent, offers) then return older(agent) end
  local answer = {}
  local i = 4
  while i <= #ARGV do
    local site, token, seq, delta, fold, root = unpack(ARGV, i, i + 5)
    local delay, rests_until, progress, taken, sends_back = unpack(ARGV, i + 6, i + 10)
    local n = tonumber(ARGV[i + 11])
    i = i + 12
    local holds, last, _, _, before = holding(agent, site)
    local verdict = 'OK'
    if holds ~= token then
      verdict = 'STALE'
    elseif last == seq then
      verdict = 'AGAIN'
    elseif tonumber(last) + 1 ~= tonumber(seq) then
      verdict = 'GAP'
    else
      tell_pages(i, i + 2 * n - 1)
      if fold == '1' then call('UNLINK', base .. 'checkpoint:' .. site) end
      if delta ~= '' then call('RPUSH', base .. 'checkpoint:' .. site, delta) end
      if sends_back == '1' then note_reopening(site, record_of(site)) end
      if taken ~= '0' then call('LTRIM', base .. 'paths:' .. site, taken, -1) end
      if progress == '' then progress = before end
      call('HSET', base .. 'held:' .. agent, site, table.concat({ token, seq, delay, rests_until, progress }, ' '))
    end
    local record = root ~= '' and (verdict == 'OK' or verdict == 'AGAIN') and record_of(site)
    if record then
      compare_roots(site, record, root)
      local first = may_be_alias_of(site, record)
      if first then verdict = verdict .. ' ' .. first end
    end
    answer[#answer + 1] = verdict
    i = i + 2 * n
  end
  return answer
end

-- A lease for another work than loading has ended; what it did not come to is due at once.
local function leave_work(site, record, how, due, rests)
  local time = now()
  alter(site, record, let_go)
  if due == 0 and how ~= 'finished' then due = how == 'parked' and time + CROWDED_MS or time end
  -- It may have been told a sooner one.
  if due > 0 then call('ZADD', base .. 'wake:' .. record.work, 'LT', due, site) end
  if rests > time and record.state ~= 'b' then call('ZADD', base .. 'wake:site', 'GT', rests, site) end
  return 1
end

-- agent, site, token, how (finished, returned, suspended, parked, later), due (ms, for later and returned; 0: at
-- once), detail (paths seen for finished, the address for parked), reason or '', record
-- (JSON) or '', progress ('': the record keeps what it has), the time before which nobody may ask the site (ms; 0:
-- none), and the number of the lease's last delivery
-- -> 1 done, 0 more paths were given meanwhile (go on), error STALE, also where the last delivery is not known.
function operations.leave(agent, site, token, how, due, detail, reason, report, progress, rests, seq)
  local record = own(site, token, agent)
  if not record then return stale(site) end
  local _, last = holding(agent, site)
  if tonumber(last or 0) < tonumber(seq) then return stale(site) end
  local work = record.work
  if work == 'site' and how == 'finished' and call('LLEN', base .. 'paths:' .. site) > tonumber(detail) then
    return 0
  end
  tell(report)
  vacate_all(site, record)
  if work ~= 'site' then return leave_work(site, record, how, tonumber(due), tonumber(rests)) end
  if how == 'finished' and tonumber(rests) > now() then call('ZADD', base .. 'wake:site', 'GT', rests, site) end
  if how == 'finished' then call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site) end
  alter(site, record, function(r)
    let_go(r)
    if how == 'parked' then r.address = detail end
    if progress ~= '' then r.progress = progress end
    if r.state ~= 'b' then r.state = how == 'finished' and 'f' or how == 'later' and 'l' or unfinished(site) end
  end)
  if record.state == 'b' then return 1 end
  local noted = call('HEXISTS', base .. 'reopen', site) == 1
  if record.state == 'f' and (noted or call('EXISTS', base .. 'offered:' .. site) == 1) then await_decision(site) end
  if how == 'later' then
    call('ZADD', base .. 'wake:site', due, site)
    if reason ~= '' then call('HSET', base .. 'why', site, reason) end
  elseif how == 'returned' and tonumber(due) > 0 then
    call('ZADD', base .. 'wake:site', due, site) -- still suspended: it counts as work that somebody could have
  elseif (how == 'returned' or how == 'parked') and not record.paused then
    -- Parked here it might wait for ever: whoever filled the address may have left since. Lease parks it if not.
    call('RPUSH', again('site'), site)
  elseif how == 'suspended' and record.state == 'w' then
    call('RPUSH', base .. 'fresh', site) -- nothing is known of it: it is as it was found
  end
  await_comparisons(site, record, how, due)
  return 1
end

-- agent, then per site: name, token, when its check is due again (ms), time before which it must not be asked (ms; 0:
-- none), what is kept of its robots.txt or '' (as it was), record (JSON) or '' -> how many leases ended. What was seen
-- is told also where the lease is another's by now; told twice it is stored once.
function operations.hand_in(agent)
  local time, ended = now(), 0
  for i = 3, #ARGV, 6 do
    local site, token, due, rests_until, permit, report = unpack(ARGV, i, i + 5)
    tell(report)
    local record = own(site, token, agent)
    if record then
      ended = ended + 1
      vacate_all(site, record)
      alter(site, record, let_go)
      if permit ~= '' then call('HSET', base .. 'permits', site, permit) end
      if record.state ~= 'b' then
        call('ZADD', base .. 'wake:' .. record.work, due, site)
        if tonumber(rests_until) > time then call('ZADD', base .. 'wake:site', 'GT', rests_until, site) end
      end
    end
  end
  return ended
end
